// Turning pairs of channels: (u, v) -> (u cos - v sin, v cos + u sin), in float32 (float64 for
// float64), rounded once. Memory is the limit, so everything here serves reading and writing once:
//
//   - Blocks of tokens, all heads inside: a block's rows of the tables stay in the cache.
//   - Inside a block, heads or tokens first, as the strides of the tensor have it.
//   - Rows are fetched 8 ahead: the processor's own prefetcher loses rows of partial width.
//
// Axes: B batch, H heads, S tokens, D channels, P pairs. Strides count elements.
#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include "float16.h"
#include "kernels.h"
#include "numbers.h"

namespace nb = nanobind;

namespace whereness {
namespace {

enum Type { FLOAT32, FLOAT64, BFLOAT16, FLOAT16 };
constexpr int64_t SIZES[] = {4, 8, 2, 2};

constexpr int64_t BLOCK_BYTES = 16 << 10;      // of the tables: half of a first-level cache
constexpr int64_t AHEAD = 8;                   // rows
constexpr int64_t LINE = 64;                   // bytes of a cache line
constexpr int64_t LITTLE = 32 << 10;           // channels that one thread turns sooner than two

// Threads of a parent are not there in a forked child, and OpenMP would wait for them forever.
bool forked = false;

// Rows of one head (tokens follow each other) or of one token (heads do).
struct Run {
  const char *x;
  char *out;
  const char *cos, *sin;
  const char *next;  // where x goes on after this run
  int64_t x_step, out_step, cos_step, sin_step;  // bytes from row to row
  int64_t before, after;  // bytes of the channels that pass untouched
  int64_t count, pairs;
  bool transposed;
};

template <class T>
WHERENESS_INLINE void turn_pair(T u, T v, T &out_u, T &out_v, typename Wide<T>::type cos,
                                typename Wide<T>::type sin) {
  const auto a = widen(u), b = widen(v);
  narrow(a * cos - b * sin, out_u);
  narrow(b * cos + a * sin, out_v);
}

// A row may be turned in place: an iteration writes what it alone has read, hence ivdep.
template <class T, bool interleaved>
WHERENESS_INLINE void turn_row(const T *x, T *out, const typename Wide<T>::type *cos,
                               const typename Wide<T>::type *sin, int64_t pairs,
                               typename Wide<T>::type sign) {
  if (interleaved) {
#pragma GCC ivdep
    for (int64_t k = 0; k < pairs; ++k)
      turn_pair(x[2 * k], x[2 * k + 1], out[2 * k], out[2 * k + 1], cos[k], sign * sin[k]);
  } else {
#pragma GCC ivdep
    for (int64_t k = 0; k < pairs; ++k)
      turn_pair(x[k], x[k + pairs], out[k], out[k + pairs], cos[k], sign * sin[k]);
  }
}

// `rows`: turns a row in another way than turn_row.
template <class T, bool interleaved>
WHERENESS_INLINE void turn_run(const Run &r, TurnFloat16 *rows = nullptr) {
  using W = typename Wide<T>::type;
  const W sign = r.transposed ? -1 : 1;
  const int64_t turned = 2 * r.pairs * int64_t(sizeof(T));
  const bool in_place = r.x == r.out;
  const int64_t from = in_place ? r.before : 0;
  const int64_t to = r.before + turned + (in_place ? 0 : r.after);
  for (int64_t i = 0; i < r.count; ++i) {
    const int64_t later = i + AHEAD;
    const char *soon =
        later < r.count ? r.x + later * r.x_step : r.next + (later - r.count) * r.x_step;
    for (int64_t at = from; at < to; at += LINE) __builtin_prefetch(soon + at);
    const char *x = r.x + i * r.x_step;
    char *out = r.out + i * r.out_step;
    if (!in_place && r.before) std::memcpy(out, x, r.before);
    x += r.before, out += r.before;
    const W *cos = (const W *)(r.cos + i * r.cos_step), *sin = (const W *)(r.sin + i * r.sin_step);
    if constexpr (std::is_same_v<T, float16>) {
      if (rows != nullptr)
        rows((const T *)x, (T *)out, cos, sin, r.pairs, sign);
      else
        turn_row<T, interleaved>((const T *)x, (T *)out, cos, sin, r.pairs, sign);
    } else {
      turn_row<T, interleaved>((const T *)x, (T *)out, cos, sin, r.pairs, sign);
    }
    if (!in_place && r.after) std::memcpy(out + turned, x + turned, r.after);
  }
}

using Turner = void (*)(const Run &);
#define WHERENESS_TURNERS(name, T)                                          \
  WHERENESS_CLONES void name##_half(const Run &r) { turn_run<T, false>(r); } \
  WHERENESS_CLONES void name##_interleaved(const Run &r) { turn_run<T, true>(r); }
}  // namespace

WHERENESS_TURNERS(turn_float, float)
WHERENESS_TURNERS(turn_double, double)
WHERENESS_TURNERS(turn_bfloat16, bfloat16)
WHERENESS_TURNERS(turn_float16, float16)

namespace {

void turn_f16c_half(const Run &r) { turn_run<float16, false>(r, turn_half_f16c); }
void turn_f16c_interleaved(const Run &r) { turn_run<float16, true>(r, turn_interleaved_f16c); }

const Turner TURNERS[][2] = {
    {turn_float_half, turn_float_interleaved},
    {turn_double_half, turn_double_interleaved},
    {turn_bfloat16_half, turn_bfloat16_interleaved},
    {turn_float16_half, turn_float16_interleaved},
    {turn_f16c_half, turn_f16c_interleaved},
};

Turner turner(Type type, bool interleaved) {
  return TURNERS[type == FLOAT16 && has_f16c() ? type + 1 : type][interleaved];
}

// One tensor, its tables and its output.
struct Job {
  char *x, *out, *cos, *sin;
  Type type;
  int64_t sizes[4], x_strides[4], out_strides[4];     // B, H, S, D
  int64_t table_sizes[4], cos_strides[4], sin_strides[4];  // B or 1, S, H or a divisor, P
  int64_t start;
  bool interleaved, transposed;
  int64_t block, token_blocks, head_blocks;           // tokens of a block; blocks along an axis

  int64_t batch() const { return sizes[0]; }
  int64_t heads() const { return sizes[1]; }
  int64_t tokens() const { return sizes[2]; }
  int64_t width() const { return sizes[3]; }
  int64_t pairs() const { return table_sizes[3]; }
  int64_t size() const { return SIZES[type]; }
  int64_t table_size() const { return type == FLOAT64 ? 8 : 4; }
  int64_t group() const { return heads() / table_sizes[2]; }
  int64_t elements() const { return batch() * heads() * tokens() * width(); }
  int64_t units() const { return elements() ? batch() * token_blocks * head_blocks : 0; }
};

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Blocks small enough for the cache, and enough of them for every thread.
void cut(Job &job, int threads) {
  const int64_t row = 2 * std::max<int64_t>(1, job.pairs() * job.table_sizes[2]) * job.table_size();
  const int64_t fair = ceil_divide(job.tokens() * job.batch(), 4 * threads);
  job.block = std::max<int64_t>(1, std::min(BLOCK_BYTES / row, fair));
  job.token_blocks = ceil_divide(job.tokens(), job.block);
  const int64_t units = job.batch() * job.token_blocks;
  job.head_blocks = units < threads ? std::min<int64_t>(job.heads(), threads) : 1;
}

// One row of each end: where its channel 0 is, in bytes.
struct Places {
  const Job &job;
  int64_t b;

  const char *x(int64_t h, int64_t s) const { return job.x + job.size() * at(job.x_strides, h, s); }
  char *out(int64_t h, int64_t s) const { return job.out + job.size() * at(job.out_strides, h, s); }
  int64_t table(const int64_t *by, int64_t h, int64_t s) const {
    return job.table_size() * (b * by[0] + s * by[1] + h / job.group() * by[2]);
  }

 private:
  int64_t at(const int64_t *by, int64_t h, int64_t s) const { return b * by[0] + h * by[1] + s * by[2]; }
};

Run run_from(const Job &job, const Places &places, int64_t h, int64_t s) {
  Run run{};
  run.x = places.x(h, s), run.out = places.out(h, s);
  run.cos = job.cos + places.table(job.cos_strides, h, s);
  run.sin = job.sin + places.table(job.sin_strides, h, s);
  run.before = job.start * job.size();
  run.after = (job.width() - job.start - 2 * job.pairs()) * job.size();
  run.pairs = job.pairs(), run.transposed = job.transposed;
  return run;
}

// Heads `head` to `head_end` of tokens `token` to `token_end`.
void turn_block(const Job &job, int64_t b, int64_t token, int64_t token_end, int64_t head,
                int64_t head_end) {
  const Turner turn = turner(job.type, job.interleaved);
  const Places places{job, b};
  const int64_t size = job.size(), by_head = 1, by_token = 2;
  if (std::abs(job.x_strides[by_token]) <= std::abs(job.x_strides[by_head])) {
    for (int64_t h = head; h < head_end; ++h) {
      Run run = run_from(job, places, h, token);
      run.count = token_end - token;
      run.x_step = size * job.x_strides[by_token];
      run.out_step = size * job.out_strides[by_token];
      run.cos_step = job.table_size() * job.cos_strides[1];
      run.sin_step = job.table_size() * job.sin_strides[1];
      run.next = h + 1 < head_end ? places.x(h + 1, token) : places.x(head, token_end);
      turn(run);
    }
    return;
  }
  for (int64_t s = token; s < token_end; ++s) {
    for (int64_t h = head, end; h < head_end; h = end) {
      end = std::min(head_end, (h / job.group() + 1) * job.group());
      Run run = run_from(job, places, h, s);
      run.count = end - h;
      run.x_step = size * job.x_strides[by_head];
      run.out_step = size * job.out_strides[by_head];
      run.next = end < head_end ? places.x(end, s) : places.x(head, s + 1);
      turn(run);
    }
  }
}

// A last axis of another stride than 1 (a gradient that expand() made, a transposed tensor) is
// gathered and scattered row by row: correct, not fast.
void turn_scattered(const Job &job, int64_t b, int64_t token, int64_t token_end, int64_t head,
                    int64_t head_end) {
  const Turner turn = turner(job.type, job.interleaved);
  const Places places{job, b};
  const int64_t size = job.size(), width = job.width();
  std::vector<char> row(width * size);
  for (int64_t h = head; h < head_end; ++h) {
    for (int64_t s = token; s < token_end; ++s) {
      Run run = run_from(job, places, h, s);
      const char *x = run.x;
      char *out = run.out;
      for (int64_t d = 0; d < width; ++d)
        std::memcpy(&row[d * size], x + d * job.x_strides[3] * size, size);
      run.x = run.next = run.out = row.data();
      run.count = 1;
      turn(run);
      for (int64_t d = 0; d < width; ++d)
        std::memcpy(out + d * job.out_strides[3] * size, &row[d * size], size);
    }
  }
}

void turn_unit(const Job &job, int64_t unit) {
  const int64_t part = unit % job.head_blocks, rest = unit / job.head_blocks;
  const int64_t block = rest % job.token_blocks, b = rest / job.token_blocks;
  const int64_t token = block * job.block, heads = job.heads();
  const bool rows = job.width() == 1 || (job.x_strides[3] == 1 && job.out_strides[3] == 1);
  (rows ? turn_block : turn_scattered)(job, b, token, std::min(job.tokens(), token + job.block),
                                       part * heads / job.head_blocks,
                                       (part + 1) * heads / job.head_blocks);
}

void ask_for_large_pages(const Job &job) {
  if (job.out == job.x || !job.elements()) return;
  int64_t last = 0;
  for (int i = 0; i < 4; ++i) last += (job.sizes[i] - 1) * job.out_strides[i];
  prefer_large_pages(job.out, (last + 1) * job.size());
}

void turn_all(std::vector<Job> &jobs, int threads) {
  int64_t units = 0, elements = 0;
  for (const Job &job : jobs) elements += job.elements();
  if (forked || elements < LITTLE) threads = 1;
  for (Job &job : jobs) {
    cut(job, threads);
    ask_for_large_pages(job);
    units += job.units();
  }
  const auto turn = [&](int64_t unit) {
    const Job *job = jobs.data();
    for (; unit >= job->units(); ++job) unit -= job->units();
    turn_unit(*job, unit);
  };
  if (threads == 1) {
    for (int64_t unit = 0; unit < units; ++unit) turn(unit);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t unit = 0; unit < units; ++unit) turn(unit);
}

// One tensor as Python told it: (address, type, sizes, strides).
struct Told {
  char *data;
  Type type;
  int64_t sizes[4], strides[4];
};

int64_t number(PyObject *tuple, Py_ssize_t i) {
  return PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
}

Told read(PyObject *given) {
  Told told;
  told.data = (char *)PyLong_AsVoidPtr(PyTuple_GET_ITEM(given, 0));
  told.type = Type(number(given, 1));
  PyObject *sizes = PyTuple_GET_ITEM(given, 2), *strides = PyTuple_GET_ITEM(given, 3);
  if (PyTuple_GET_SIZE(sizes) != 4) throw nb::value_error("Tensors and tables must have four axes.");
  for (int i = 0; i < 4; ++i)
    told.sizes[i] = number(sizes, i), told.strides[i] = number(strides, i);
  return told;
}

void require(bool ok, const char *message) {
  if (!ok) throw nb::value_error(message);
}

// Refuses what would read or write other memory than the tensors' own.
void check(const Told &x, const Told &out, const Told &cos, const Told &sin, int64_t start) {
  require(out.type == x.type && std::equal(x.sizes, x.sizes + 4, out.sizes),
          "An output must have the shape and the type of its tensor.");
  require(std::equal(cos.sizes, cos.sizes + 4, sin.sizes), "cos and sin must have one shape.");
  const Type wide = x.type == FLOAT64 ? FLOAT64 : FLOAT32;
  require(cos.type == wide && sin.type == wide,
          "Tables must be float64 for float64 tensors, float32 for others.");
  const auto [batch, tokens, heads, pairs] = cos.sizes;
  require(tokens == x.sizes[2] && (batch == 1 || batch == x.sizes[0]),
          "Tables must have the tokens of their tensor, and its batch size or 1.");
  require(heads > 0 && x.sizes[1] % heads == 0,
          "A tensor must have a multiple of its tables' heads.");
  require(start >= 0 && start + 2 * pairs <= x.sizes[3],
          "The channels that turn must lie inside the tensor.");
  require(pairs < 2 || (cos.strides[3] == 1 && sin.strides[3] == 1),
          "Tables must be contiguous along their last axis.");
  const bool empty = std::count(x.sizes, x.sizes + 4, 0) > 0;
  for (int i = 0; i < 4; ++i)
    require(empty || x.sizes[i] < 2 || out.strides[i] != 0,
            "An output must have memory for every entry.");
}

// (x, out, cos, sin), each as above.
Job read_job(PyObject *given, int64_t start, bool interleaved, bool transposed) {
  const Told x = read(PyTuple_GET_ITEM(given, 0)), out = read(PyTuple_GET_ITEM(given, 1));
  const Told cos = read(PyTuple_GET_ITEM(given, 2)), sin = read(PyTuple_GET_ITEM(given, 3));
  check(x, out, cos, sin, start);
  Job job{};
  job.x = x.data, job.out = out.data, job.cos = cos.data, job.sin = sin.data, job.type = x.type;
  std::copy_n(x.sizes, 4, job.sizes);
  std::copy_n(x.strides, 4, job.x_strides);
  std::copy_n(out.strides, 4, job.out_strides);
  std::copy_n(cos.sizes, 4, job.table_sizes);
  std::copy_n(cos.strides, 4, job.cos_strides);
  std::copy_n(sin.strides, 4, job.sin_strides);
  if (cos.sizes[0] == 1) job.cos_strides[0] = job.sin_strides[0] = 0;
  job.start = start, job.interleaved = interleaved, job.transposed = transposed;
  return job;
}

void rotate(nb::list given, int64_t start, bool interleaved, bool transposed, int threads) {
  std::vector<Job> jobs;
  jobs.reserve(given.size());
  for (nb::handle each : given)
    jobs.push_back(read_job(each.ptr(), start, interleaved, transposed));
  nb::gil_scoped_release released;
  turn_all(jobs, threads);
}

}  // namespace

void bind_rotary(nanobind::module_ &m) {
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  m.def("rotate", &rotate);
}

}  // namespace whereness
