// Half-precision numbers as the float32 that they are, and back, rounded to nearest even.
#pragma once

#include <cstdint>
#include <cstring>

namespace whereness {

struct bfloat16 {
  uint16_t bits;
};
struct float16 {
  uint16_t bits;
};

// What each type is turned in.
template <class T>
struct Wide {
  using type = float;
};
template <>
struct Wide<double> {
  using type = double;
};

#define WHERENESS_INLINE inline __attribute__((always_inline))

// The same bits as a number of another type.
template <class To, class From>
WHERENESS_INLINE To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
WHERENESS_INLINE float as_float(uint32_t bits) { return bits_as<float>(bits); }
WHERENESS_INLINE uint32_t as_bits(float x) { return bits_as<uint32_t>(x); }

WHERENESS_INLINE float widen(float x) { return x; }
WHERENESS_INLINE double widen(double x) { return x; }
WHERENESS_INLINE float widen(bfloat16 x) { return as_float(uint32_t(x.bits) << 16); }

// All three cases of float16 are computed and one is chosen: branches would not vectorise.
WHERENESS_INLINE float widen(float16 x) {
  constexpr uint32_t shift = 112u << 23;  // the difference of the exponents' biases
  const uint32_t magnitude = uint32_t(x.bits & 0x7fff) << 13;
  const uint32_t normal = magnitude + shift;
  const uint32_t endless = normal + shift;  // infinite or not a number
  const uint32_t tiny =
      as_bits(as_float(normal + (1u << 23)) - as_float(shift + (1u << 23)));  // subnormal or zero
  const uint32_t bits = magnitude >= (0x7c00u << 13)  ? endless
                        : magnitude < (0x0400u << 13) ? tiny
                                                      : normal;
  return as_float(bits | uint32_t(x.bits & 0x8000) << 16);
}

WHERENESS_INLINE void narrow(float x, float &out) { out = x; }
WHERENESS_INLINE void narrow(double x, double &out) { out = x; }

// The nearest bfloat16 in the upper half; the lower half is anything.
WHERENESS_INLINE uint32_t rounded(float x) {
  const uint32_t bits = as_bits(x);
  return x != x ? 0x7fc00000u : bits + 0x7fff + ((bits >> 16) & 1);
}
WHERENESS_INLINE void narrow(float x, bfloat16 &out) { out.bits = uint16_t(rounded(x) >> 16); }

WHERENESS_INLINE void narrow(float x, float16 &out) {
  const uint32_t bits = as_bits(x), magnitude = bits & 0x7fffffff;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // The last place of 0.5 is that of a subnormal float16, so the sum rounds as it should.
  const uint32_t tiny = as_bits(as_float(magnitude) + 0.5f) - as_bits(0.5f);
  const uint32_t endless = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  const uint32_t chosen = magnitude >= 0x477ff000 ? endless
                          : magnitude < 0x38800000 ? tiny
                                                   : normal;
  out.bits = uint16_t(chosen | (bits >> 16 & 0x8000));
}

}  // namespace whereness
