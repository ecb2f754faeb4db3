// Intrinsics, the only ones: the compiler vectorises no conversion of float16 for these machines,
// and what numbers.h does in its place took 4.4 ms where memory needed 1 (32 heads of 2048 tokens,
// 128 channels, one thread).
#include "float16.h"

#include "kernels.h"
#include "numbers.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#include <cstring>
#include <type_traits>
// From here on only: functions of the headers above must run on every processor.
#pragma GCC target("avx2,f16c")
#include "rows.h"

namespace whereness {
namespace {

WHERENESS_INLINE __m256 load8(const float16 *x) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x));
}

WHERENESS_INLINE void store8(float16 *out, __m256 x) {
  _mm_storeu_si128((__m128i *)out, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

template <int lanes>
struct Half {
  static WHERENESS_INLINE void turn(const Rows<float16, lanes> &rows, const float *cos,
                                    const float *sin, int64_t pairs, float sign) {
    const __m256 signs = _mm256_set1_ps(sign);
    int64_t k = 0;
    for (; k + 8 <= pairs; k += 8) {
      const __m256 c = _mm256_loadu_ps(cos + k), s = signs * _mm256_loadu_ps(sin + k);
#pragma GCC unroll 2
      for (int i = 0; i < lanes; ++i) {
        const __m256 u = load8(rows.x[i] + k), v = load8(rows.x[i] + k + pairs);
        store8(rows.out[i] + k, u * c - v * s);
        store8(rows.out[i] + k + pairs, v * c + u * s);
      }
    }
    turn_row<float16, false, lanes>(rows, cos, sin, k, pairs, sign);
  }
};

template <int lanes>
struct Interleaved {
  static WHERENESS_INLINE void turn(const Rows<float16, lanes> &rows, const float *cos,
                                    const float *sin, int64_t pairs, float sign) {
    const __m256 signs = _mm256_set1_ps(sign);
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    int64_t k = 0;
    for (; k + 4 <= pairs; k += 4) {
      const __m256 c = _mm256_castps128_ps256(_mm_loadu_ps(cos + k));
      const __m256 s = _mm256_castps128_ps256(_mm_loadu_ps(sin + k));
      const __m256 cc = _mm256_permutevar8x32_ps(c, twice);
      const __m256 ss = signs * _mm256_permutevar8x32_ps(s, twice);
#pragma GCC unroll 2
      for (int i = 0; i < lanes; ++i) {  // u, v, u, v, ... and v, u, v, u, ...
        const __m256 uv = load8(rows.x[i] + 2 * k), vu = _mm256_permute_ps(uv, 0xb1);
        store8(rows.out[i] + 2 * k, _mm256_addsub_ps(uv * cc, vu * ss));
      }
    }
    turn_row<float16, true, lanes>(rows, cos, sin, k, pairs, sign);
  }
};

}  // namespace

bool has_f16c() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return has;
}

void turn_f16c_half(const Run &r) { turn_run<float16, false, 1, Half<1>>(r); }
void turn_f16c_half_2(const Run &r) { turn_run<float16, false, 2, Half<2>>(r); }
void turn_f16c_interleaved(const Run &r) { turn_run<float16, true, 1, Interleaved<1>>(r); }
void turn_f16c_interleaved_2(const Run &r) { turn_run<float16, true, 2, Interleaved<2>>(r); }

}  // namespace whereness
#else
namespace whereness {

bool has_f16c() { return false; }
void turn_f16c_half(const Run &) {}
void turn_f16c_half_2(const Run &) {}
void turn_f16c_interleaved(const Run &) {}
void turn_f16c_interleaved_2(const Run &) {}

}  // namespace whereness
#endif
