// Turning the rows of one head or two: (u, v) -> (u cos - v sin, v cos + u sin), in float32 (float64
// for float64), rounded once. Loops that the compiler vectorises.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels.h"
#include "numbers.h"

namespace whereness {

constexpr int64_t LINE = 64;  // bytes of a cache line

// How many rows ahead to fetch, and into which cache (3 the first, 2 the second): measured. Fetching
// float32 from memory into the first took up to half as long again.
template <class T>
constexpr int64_t AHEAD = sizeof(T) < 4 ? 8 : 16;
template <class T>
constexpr int CACHE = sizeof(T) < 4 ? 3 : 2;

// Rows of one head (tokens follow each other) or of one token (heads do). Two heads may be turned
// together: a row of the tables is then read once for both, which took a third off the whole.
struct Run {
  const char *x;
  char *out;
  const char *cos, *sin;
  const char *next;  // where x goes on after this run
  int64_t x_step, out_step, cos_step, sin_step;  // bytes from row to row
  int64_t x_lane, out_lane;                      // bytes from head to head of those together
  int64_t before, after;  // bytes of the channels that pass untouched
  int64_t count, pairs;
  bool transposed;
  bool little;  // all of it is in a cache: nothing to fetch
};

template <class T>
WHERENESS_INLINE void turn_pair(T u, T v, T &out_u, T &out_v, typename Wide<T>::type cos,
                                typename Wide<T>::type sin) {
  const auto a = widen(u), b = widen(v);
  narrow(a * cos - b * sin, out_u);
  narrow(b * cos + a * sin, out_v);
}

// x and out of one row of each head that is turned.
template <class T, int lanes>
struct Rows {
  const T *x[lanes];
  T *out[lanes];
};

// A row may be turned in place: an iteration writes what it alone has read, hence ivdep.
template <class T, bool interleaved, int lanes>
WHERENESS_INLINE void turn_row(const Rows<T, lanes> &rows, const typename Wide<T>::type *cos,
                               const typename Wide<T>::type *sin, int64_t first, int64_t pairs,
                               typename Wide<T>::type sign) {
#pragma GCC ivdep
  for (int64_t k = first; k < pairs; ++k) {
    const auto c = cos[k], s = sign * sin[k];
    const int64_t u = interleaved ? 2 * k : k, v = interleaved ? u + 1 : k + pairs;
#pragma GCC unroll 2
    for (int i = 0; i < lanes; ++i)
      turn_pair(rows.x[i][u], rows.x[i][v], rows.out[i][u], rows.out[i][v], c, s);
  }
}

// Two bfloat16 in one load, wherever they lie: halves of 32 bits need no widening and narrowing of
// vectors, which took a fifth of the time.
using Two = uint32_t __attribute__((may_alias, aligned(2)));

constexpr bool FIRST_IS_LOW = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

WHERENESS_INLINE float first_of(uint32_t two) { return as_float(two << 16); }
WHERENESS_INLINE float second_of(uint32_t two) { return as_float(two & 0xffff0000u); }
WHERENESS_INLINE uint32_t both_of(float first, float second) {
  return rounded(first) >> 16 | (rounded(second) & 0xffff0000u);
}

template <bool interleaved, int lanes>
WHERENESS_INLINE void turn_row_by_twos(const Rows<bfloat16, lanes> &rows, const float *cos,
                                       const float *sin, int64_t pairs, float sign) {
  if (interleaved) {
#pragma GCC ivdep
    for (int64_t k = 0; k < pairs; ++k) {
      const float c = cos[k], s = sign * sin[k];
#pragma GCC unroll 2
      for (int i = 0; i < lanes; ++i) {
        const uint32_t pair = ((const Two *)rows.x[i])[k];
        const float u = first_of(pair), v = second_of(pair);
        ((Two *)rows.out[i])[k] = both_of(u * c - v * s, v * c + u * s);
      }
    }
    return;
  }
#pragma GCC ivdep
  for (int64_t k = 0; k < pairs / 2; ++k) {
    const float c0 = cos[2 * k], s0 = sign * sin[2 * k];
    const float c1 = cos[2 * k + 1], s1 = sign * sin[2 * k + 1];
#pragma GCC unroll 2
    for (int i = 0; i < lanes; ++i) {
      const uint32_t u = ((const Two *)rows.x[i])[k], v = ((const Two *)(rows.x[i] + pairs))[k];
      const float u0 = first_of(u), u1 = second_of(u), v0 = first_of(v), v1 = second_of(v);
      ((Two *)rows.out[i])[k] = both_of(u0 * c0 - v0 * s0, u1 * c1 - v1 * s1);
      ((Two *)(rows.out[i] + pairs))[k] = both_of(v0 * c0 + u0 * s0, v1 * c1 + u1 * s1);
    }
  }
  turn_row<bfloat16, false, lanes>(rows, cos, sin, pairs / 2 * 2, pairs, sign);
}

// How a row is turned; there is another way for float16.
template <class T, bool interleaved, int lanes>
struct Plainly {
  using W = typename Wide<T>::type;
  static WHERENESS_INLINE void turn(const Rows<T, lanes> &rows, const W *cos, const W *sin,
                                    int64_t pairs, W sign) {
    if constexpr (std::is_same_v<T, bfloat16> && FIRST_IS_LOW)
      turn_row_by_twos<interleaved, lanes>(rows, cos, sin, pairs, sign);
    else
      turn_row<T, interleaved, lanes>(rows, cos, sin, 0, pairs, sign);
  }
};

template <class T, bool interleaved, int lanes, class How = Plainly<T, interleaved, lanes>>
WHERENESS_INLINE void turn_run(const Run &r) {
  using W = typename Wide<T>::type;
  const W sign = r.transposed ? -1 : 1;
  const int64_t turned = 2 * r.pairs * int64_t(sizeof(T));
  const bool in_place = r.x == r.out;
  const int64_t from = in_place ? r.before : 0;
  const int64_t to = r.before + turned + (in_place ? 0 : r.after);
  for (int64_t i = 0; i < r.count; ++i) {
    const int64_t later = i + AHEAD<T>;
    const char *soon =
        later < r.count ? r.x + later * r.x_step : r.next + (later - r.count) * r.x_step;
    Rows<T, lanes> rows;
    for (int lane = 0; lane < lanes; ++lane) {
      for (int64_t at = from; !r.little && at < to; at += LINE)
        __builtin_prefetch(soon + lane * r.x_lane + at, 0, CACHE<T>);
      for (int64_t at = 0; !in_place && !r.little && at < to; at += LINE)
        __builtin_prefetch(r.out + later * r.out_step + lane * r.out_lane + at, 1, CACHE<T>);
      const char *x = r.x + i * r.x_step + lane * r.x_lane;
      char *out = r.out + i * r.out_step + lane * r.out_lane;
      if (!in_place && r.before) std::memcpy(out, x, r.before);
      x += r.before, out += r.before;
      if (!in_place && r.after) std::memcpy(out + turned, x + turned, r.after);
      rows.x[lane] = (const T *)x, rows.out[lane] = (T *)out;
    }
    const W *cos = (const W *)(r.cos + i * r.cos_step), *sin = (const W *)(r.sin + i * r.sin_step);
    How::turn(rows, cos, sin, r.pairs, sign);
  }
}

}  // namespace whereness
