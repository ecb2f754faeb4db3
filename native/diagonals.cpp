// The middle of attention's backward pass over one tile, with a bias that is a function of the
// offset: weights and the gradient of logits from scores, and the latter's sums along diagonals.
#include <omp.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels.h"

namespace whereness {
namespace {

// exp of what is 0 at most, within 2 units in the last place; below the normal numbers it is 0.
// std::exp is a call for each number, and the loop around it would not be vectorised.
inline float power(float x) {
  const float least = -87.33f;
  const float t = x < least ? least : x;  // NaN stays
  const float magic = 12582912.0f;        // 1.5 * 2^23: adding it rounds to an integer
  const float n = (t * 1.44269504f + magic) - magic;
  const float r = (t - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // A comparison with NaN is false: the integer is then 2^0's, and p is NaN itself.
  const int32_t exponent = n >= -127.0f && n <= 127.0f ? static_cast<int32_t>(n) : 0;
  const int32_t bits = (exponent + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return x < least ? 0.0f : p * scale;
}

inline double power(double x) { return std::exp(x); }

template <class T>
inline __attribute__((always_inline)) void row(T *__restrict scores, T *__restrict grads,
                                               const T *__restrict bias, T *__restrict sums,
                                               int64_t keys, T scale, T logsumexp, T delta) {
  for (int64_t j = 0; j < keys; ++j) {
    const T weight = power(scores[j] * scale + bias[j] - logsumexp);
    const T grad = weight * (grads[j] - delta);
    scores[j] = weight;
    grads[j] = grad;
    sums[j] += grad;
  }
}

WHERENESS_CLONES void some_rows(float *scores, float *grads, const float *bias, float *sums,
                                int64_t rows, int64_t keys, float scale, const float *logsumexp,
                                const float *delta) {
  for (int64_t i = 0; i < rows; ++i)
    row(scores + i * keys, grads + i * keys, bias + i, sums + i, keys, scale, logsumexp[i],
        delta[i]);
}

WHERENESS_CLONES void some_rows(double *scores, double *grads, const double *bias, double *sums,
                                int64_t rows, int64_t keys, double scale, const double *logsumexp,
                                const double *delta) {
  for (int64_t i = 0; i < rows; ++i)
    row(scores + i * keys, grads + i * keys, bias + i, sums + i, keys, scale, logsumexp[i],
        delta[i]);
}

// scores and grads (heads, rows, keys) without gaps, as logsumexp and delta (heads, rows).
// Row i of a head has its bias at bias + i, and adds to sums + i.
template <class T>
void form(uintptr_t scores_at, uintptr_t grads_at, uintptr_t bias_at, int64_t bias_stride,
          uintptr_t sums_at, int64_t sums_stride, uintptr_t logsumexp_at, uintptr_t delta_at,
          int64_t heads, int64_t rows, int64_t keys, double scale) {
  T *scores = reinterpret_cast<T *>(scores_at), *grads = reinterpret_cast<T *>(grads_at);
  const T *bias = reinterpret_cast<const T *>(bias_at);
  T *sums = reinterpret_cast<T *>(sums_at);
  const T *logsumexp = reinterpret_cast<const T *>(logsumexp_at);
  const T *delta = reinterpret_cast<const T *>(delta_at);
  nanobind::gil_scoped_release release;

  // Where heads are fewer than threads, the rows of a head are shared out too; every part has sums
  // of its own, added in order, so that the result does not depend on which thread was first.
  const bool little = heads * rows * keys < (int64_t{1} << 15);
  const int64_t threads = little ? 1 : omp_get_max_threads();
  const int64_t parts = heads >= threads ? 1 : (threads + heads - 1) / heads;
  const int64_t width = rows + keys - 1, each = (rows + parts - 1) / parts;
  std::vector<T> own(static_cast<size_t>(heads * parts * width), T(0));
  const auto work = [&](int64_t item) {
    const int64_t head = item / parts, from = (item % parts) * each;
    const int64_t count = from + each < rows ? each : rows - from;
    if (count <= 0) return;
    const int64_t at = head * rows + from;
    some_rows(scores + at * keys, grads + at * keys, bias + head * bias_stride + from,
              own.data() + item * width + from, count, keys, static_cast<T>(scale),
              logsumexp + at, delta + at);
  };
  // One thread starts no parallel region: a forked child would wait for threads it lacks.
  if (threads == 1) {
    for (int64_t item = 0; item < heads * parts; ++item) work(item);
  } else {
#pragma omp parallel for schedule(static)
    for (int64_t item = 0; item < heads * parts; ++item) work(item);
  }
  for (int64_t item = 0; item < heads * parts; ++item) {
    T *to = sums + (item / parts) * sums_stride;
    for (int64_t n = 0; n < width; ++n) to[n] += own[item * width + n];
  }
}

}  // namespace

void bind_diagonals(nanobind::module_ &m) {
  m.def("form_float", &form<float>);
  m.def("form_double", &form<double>);
}

}  // namespace whereness
