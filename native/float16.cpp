// Intrinsics, the only ones: the compiler vectorises no conversion of float16 for these machines,
// and what numbers.h does in its place took 4.4 ms where memory needed 1 (32 heads of 2048 tokens,
// 128 channels, one thread).
#include "float16.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define WHERENESS_F16C __attribute__((target("avx2,f16c")))
#endif

namespace whereness {

#ifdef WHERENESS_F16C
namespace {

WHERENESS_F16C inline __m256 load8(const float16 *x) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x));
}

WHERENESS_F16C inline void store8(float16 *out, __m256 x) {
  _mm_storeu_si128((__m128i *)out, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

WHERENESS_F16C inline void turn_pair(float16 &u, float16 &v, float16 x, float16 y, float cos,
                                     float sin) {
  const float a = widen(x), b = widen(y);
  narrow(a * cos - b * sin, u);
  narrow(b * cos + a * sin, v);
}

}  // namespace

bool has_f16c() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return has;
}

WHERENESS_F16C void turn_half_f16c(const float16 *x, float16 *out, const float *cos,
                                   const float *sin, int64_t pairs, float sign) {
  const __m256 signs = _mm256_set1_ps(sign);
  int64_t k = 0;
  for (; k + 8 <= pairs; k += 8) {
    const __m256 u = load8(x + k), v = load8(x + k + pairs);
    const __m256 c = _mm256_loadu_ps(cos + k), s = signs * _mm256_loadu_ps(sin + k);
    store8(out + k, u * c - v * s);
    store8(out + k + pairs, v * c + u * s);
  }
  for (; k < pairs; ++k) turn_pair(out[k], out[k + pairs], x[k], x[k + pairs], cos[k], sign * sin[k]);
}

WHERENESS_F16C void turn_interleaved_f16c(const float16 *x, float16 *out, const float *cos,
                                          const float *sin, int64_t pairs, float sign) {
  const __m256 signs = _mm256_set1_ps(sign);
  const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  int64_t k = 0;
  for (; k + 4 <= pairs; k += 4) {  // u, v, u, v, ... and v, u, v, u, ...
    const __m256 uv = load8(x + 2 * k), vu = _mm256_permute_ps(uv, 0xb1);
    const __m256 c = _mm256_castps128_ps256(_mm_loadu_ps(cos + k));
    const __m256 s = _mm256_castps128_ps256(_mm_loadu_ps(sin + k));
    const __m256 across = vu * (signs * _mm256_permutevar8x32_ps(s, twice));
    store8(out + 2 * k, _mm256_addsub_ps(uv * _mm256_permutevar8x32_ps(c, twice), across));
  }
  for (; k < pairs; ++k)
    turn_pair(out[2 * k], out[2 * k + 1], x[2 * k], x[2 * k + 1], cos[k], sign * sin[k]);
}
#else
bool has_f16c() { return false; }
void turn_half_f16c(const float16 *, float16 *, const float *, const float *, int64_t, float) {}
void turn_interleaved_f16c(const float16 *, float16 *, const float *, const float *, int64_t,
                           float) {}
#endif

}  // namespace whereness
