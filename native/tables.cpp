// cos and sin of coordinates times frequencies, each rounded once to float32.
//
// An angle is kept as two doubles: the product, and what its rounding lost plus the product with the
// frequency's low part. What is left of both after multiples of pi/2 is off by 2^-106 of the angle:
// no position below 2^24 comes so near to a zero of cos or sin that a float32 would show it.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include <nanobind/stl/tuple.h>

#include "kernels.h"
#include "numbers.h"

namespace whereness {
namespace {

// pi/2 = HIGH + LOW, each the nearest double to what is left.
constexpr double HALF_PI_HIGH = 0x1.921fb54442d18p+0;
constexpr double HALF_PI_LOW = 0x1.1a62633145c07p-54;
constexpr double TWO_OVER_PI = 0x1.45f306dc9c883p-1;
// Added to a number below 2^51 it leaves the nearest integer in the last bits.
constexpr double ROUNDER = 0x1.8p+52;
// Beyond it the nearest multiple of pi/2 would not be found within a rounding of pi/4.
constexpr double LARGEST_ANGLE = 0x1p+46;

// Two fits at Chebyshev nodes in r^2, |r| < 0.83, a little over pi/4. Relative errors: sin 2^-54,
// cos 2^-48; a float32 keeps 2^-24.
inline double sin_near_zero(double r, double square) {
  double p = 0x1.5daee241881fcp-33;
  p = p * square - 0x1.ae5efc10b47c4p-26;
  p = p * square + 0x1.71de36831266dp-19;
  p = p * square - 0x1.a01a019da261dp-13;
  p = p * square + 0x1.11111111107bfp-7;
  p = p * square - 0x1.5555555555554p-3;
  return r + r * (square * p);
}

inline double cos_near_zero(double square) {
  double p = 0x1.1c39b4d5c0af1p-29;
  p = p * square - 0x1.27e1baa097663p-22;
  p = p * square + 0x1.a019fe6d03dbep-16;
  p = p * square - 0x1.6c16c16afcb4dp-10;
  p = p * square + 0x1.5555555555364p-5;
  return 1.0 + square * (square * p - 0.5);
}

// angle + rest is the exact angle; both are below LARGEST_ANGLE. Gives the bits of the quarter turn,
// the last two of which count, and the rest of the angle in `r`.
inline int64_t reduce(double angle, double rest, double &r) {
  const double rounded = angle * TWO_OVER_PI + ROUNDER;
  const double quarters = rounded - ROUNDER;
  // Exact: a multiple of 2^-52 or of the last place of the angle, and not above 1.
  const double left = __builtin_fma(-quarters, HALF_PI_HIGH, angle);
  r = __builtin_fma(-quarters, HALF_PI_LOW, left) + rest;
  return bits_as<int64_t>(rounded);
}

// Everything in integers and sums of products, so that the compiler makes vectors of it. Gives a
// number that is negative if all angles were small enough.
WHERENESS_CLONES
int64_t cos_sin_block(const double *__restrict coordinates, const double *__restrict high,
                      const double *__restrict low, int64_t count, double amplitude,
                      float *__restrict cosines, float *__restrict sines) {
  const int64_t largest = bits_as<int64_t>(LARGEST_ANGLE), without_sign = INT64_MAX;
  int64_t all_small = -1;
  for (int64_t i = 0; i < count; ++i) {
    const double angle = coordinates[i] * high[i];
    const double lost = __builtin_fma(coordinates[i], high[i], -angle);
    all_small &= (bits_as<int64_t>(angle) & without_sign) - largest;
    double r;
    const int64_t quarter = reduce(angle, __builtin_fma(coordinates[i], low[i], lost), r);
    const double square = r * r;
    const int64_t sine = bits_as<int64_t>(sin_near_zero(r, square) * amplitude);
    const int64_t cosine = bits_as<int64_t>(cos_near_zero(square) * amplitude);
    // After an odd number of quarter turns sin and cos change places.
    const int64_t swapped = (sine ^ cosine) & -(quarter & 1);
    const int64_t sine_sign = (quarter & 2) << 62, cosine_sign = ((quarter + 1) & 2) << 62;
    cosines[i] = static_cast<float>(bits_as<double>(cosine ^ swapped ^ cosine_sign));
    sines[i] = static_cast<float>(bits_as<double>(sine ^ swapped ^ sine_sign));
  }
  return all_small;
}

// Large angles, one by one: the C library reduces each part. Within 2^-50, beyond 2^53 within 2^-104
// of the angle.
void cos_sin_far(const double *coordinates, const double *high, const double *low, int64_t count,
                 double amplitude, float *cosines, float *sines) {
  for (int64_t i = 0; i < count; ++i) {
    const double angle = coordinates[i] * high[i];
    if (std::fabs(angle) < LARGEST_ANGLE) continue;
    const double lost = std::fma(coordinates[i], high[i], -angle);
    const double rest = std::fma(coordinates[i], low[i], lost);
    const double c = std::cos(angle), s = std::sin(angle);
    const double c_rest = std::cos(rest), s_rest = std::sin(rest);
    cosines[i] = static_cast<float>((c * c_rest - s * s_rest) * amplitude);
    sines[i] = static_cast<float>((s * c_rest + c * s_rest) * amplitude);
  }
}

// A tensor of (groups, rows, pairs), or a view that repeats along some of them.
struct View {
  const double *data;
  int64_t group_stride, row_stride, pair_stride;

  // Entry (row / rows, row % rows, pair).
  const double *at(int64_t row, int64_t rows) const {
    return data + row / rows * group_stride + row % rows * row_stride;
  }
  bool same_in_all_rows() const { return group_stride == 0 && row_stride == 0; }
};

void copy_rows(const View &from, int64_t first, int64_t count, int64_t rows, int64_t pairs,
               double *to) {
  for (int64_t row = first; row < first + count; ++row) {
    const double *source = from.at(row, rows);
    for (int64_t k = 0; k < pairs; ++k) *to++ = source[k * from.pair_stride];
  }
}

struct Tables {
  View coordinates, high, low;  // low has no data where there are no low parts
  int64_t rows, pairs;          // rows in a group
  double amplitude;
  float *cosines, *sines;

  // Rows [first, last) of all groups, a few at a time: enough pairs for long vectors, in the
  // first-level cache.
  void fill(int64_t first, int64_t last) const {
    const int64_t together = std::max<int64_t>(1, 256 / pairs), most = together * pairs;
    std::vector<double> c(most), h(most), l(most, 0.0);
    const bool shared = high.same_in_all_rows();
    for (int64_t row = first; row < last; row += together) {
      const int64_t count = std::min(together, last - row), n = count * pairs;
      copy_rows(coordinates, row, count, rows, pairs, c.data());
      if (!shared || row == first) {
        copy_rows(high, row, count, rows, pairs, h.data());
        if (low.data) copy_rows(low, row, count, rows, pairs, l.data());
      }
      float *cos = cosines + row * pairs, *sin = sines + row * pairs;
      if (cos_sin_block(c.data(), h.data(), l.data(), n, amplitude, cos, sin) >= 0)
        cos_sin_far(c.data(), h.data(), l.data(), n, amplitude, cos, sin);
    }
  }
};

using Strides = std::tuple<int64_t, int64_t, int64_t>;

View view(uintptr_t data, const Strides &s) {
  return {reinterpret_cast<const double *>(data), std::get<0>(s), std::get<1>(s), std::get<2>(s)};
}

void cos_sin(uintptr_t coordinates, const Strides &of_coordinates, uintptr_t high, uintptr_t low,
             const Strides &of_frequencies, int64_t groups, int64_t rows, int64_t pairs,
             double amplitude, uintptr_t cosines, uintptr_t sines) {
  const Tables tables{view(coordinates, of_coordinates), view(high, of_frequencies),
                      view(low, of_frequencies),         rows,
                      pairs,                             amplitude,
                      reinterpret_cast<float *>(cosines), reinterpret_cast<float *>(sines)};
  const int64_t total = groups * rows;
  if (total * pairs == 0) return;
  const int64_t bytes = total * pairs * static_cast<int64_t>(sizeof(float));
  prefer_large_pages(tables.cosines, bytes);
  prefer_large_pages(tables.sines, bytes);
  // A thread earns its start with some 50 microseconds of work.
  const int64_t useful = std::max<int64_t>(1, total * pairs / 16384);
  const int64_t threads = std::min<int64_t>({useful, total, omp_get_max_threads()});
  if (threads == 1) {
    tables.fill(0, total);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int64_t part = 0; part < threads; ++part)
    tables.fill(total * part / threads, total * (part + 1) / threads);
}

}  // namespace

void bind_tables(nanobind::module_ &m) {
  m.def("cos_sin", &cos_sin, nanobind::call_guard<nanobind::gil_scoped_release>(),
        "cos and sin, (groups, rows, pairs) float32, of float64 coordinates times frequencies.");
}

}  // namespace whereness
