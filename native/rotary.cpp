// Turning pairs of channels of whole tensors. Memory is the limit, so everything here serves reading
// and writing once:
//
//   - Blocks of tokens, all heads inside: a block's rows of the tables stay in the cache.
//   - Inside a block, heads or tokens first, as the strides of the tensor have it; two heads at a
//     time where tokens are first.
//   - Rows are fetched ahead: the processor's own prefetcher loses rows of partial width.
#include "rotary.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "float16.h"
#include "rows.h"

namespace whereness {
namespace {

constexpr int64_t BLOCK_BYTES = 128 << 10;  // of the tables: they stay in a second-level cache
constexpr int64_t TOGETHER = 2;             // heads

bool forked = false;

using Turner = void (*)(const Run &);
#define WHERENESS_TURNERS(name, T)                                                       \
  WHERENESS_CLONES void name##_half(const Run &r) { turn_run<T, false, 1>(r); }           \
  WHERENESS_CLONES void name##_half_2(const Run &r) { turn_run<T, false, 2>(r); }         \
  WHERENESS_CLONES void name##_interleaved(const Run &r) { turn_run<T, true, 1>(r); }     \
  WHERENESS_CLONES void name##_interleaved_2(const Run &r) { turn_run<T, true, 2>(r); }
}  // namespace

WHERENESS_TURNERS(turn_float, float)
WHERENESS_TURNERS(turn_double, double)
WHERENESS_TURNERS(turn_bfloat16, bfloat16)
WHERENESS_TURNERS(turn_float16, float16)

namespace {

#define WHERENESS_TURNER(name) \
  { {name##_half, name##_half_2}, {name##_interleaved, name##_interleaved_2} }
const Turner TURNERS[][2][TOGETHER] = {
    WHERENESS_TURNER(turn_float),    WHERENESS_TURNER(turn_double), WHERENESS_TURNER(turn_bfloat16),
    WHERENESS_TURNER(turn_float16), WHERENESS_TURNER(turn_f16c),
};

Turner turner(const Job &job, int64_t heads) {
  const Type type = job.type;
  return TURNERS[type == FLOAT16 && has_f16c() ? type + 1 : type][job.interleaved][heads - 1];
}

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Blocks small enough for the cache, and enough of them for every thread.
void cut(Job &job, int threads) {
  const int64_t row = 2 * std::max<int64_t>(1, job.pairs() * job.table_sizes[2]) * job.table_size();
  const int64_t fair = ceil_divide(job.tokens() * job.batch(), threads);
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
  run.little = job.elements() < LITTLE;
  return run;
}

// Heads `head` to `head_end` of tokens `token` to `token_end`.
void turn_block(const Job &job, int64_t b, int64_t token, int64_t token_end, int64_t head,
                int64_t head_end) {
  const Places places{job, b};
  const int64_t size = job.size(), by_head = 1, by_token = 2;
  const bool tokens_first = std::abs(job.x_strides[by_token]) <= std::abs(job.x_strides[by_head]);
  if (tokens_first && job.tokens() > 1) {
    for (int64_t h = head, end; h < head_end; h = end) {
      end = std::min({head_end, h + TOGETHER, (h / job.group() + 1) * job.group()});
      Run run = run_from(job, places, h, token);
      run.count = token_end - token;
      run.x_step = size * job.x_strides[by_token];
      run.out_step = size * job.out_strides[by_token];
      run.cos_step = job.table_size() * job.cos_strides[1];
      run.sin_step = job.table_size() * job.sin_strides[1];
      run.x_lane = size * job.x_strides[by_head];
      run.out_lane = size * job.out_strides[by_head];
      run.next = end < head_end ? places.x(end, token) : places.x(head, token_end);
      turner(job, end - h)(run);
    }
    return;
  }
  const Turner turn = turner(job, 1);
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
  const Turner turn = turner(job, 1);
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

}  // namespace

void turn_all(std::vector<Job> &jobs) {
  int threads = omp_get_max_threads();
  int64_t elements = 0;
  for (const Job &job : jobs) elements += job.elements();
  if (forked || elements < LITTLE) threads = 1;
  for (Job &job : jobs) {
    cut(job, threads);
    ask_for_large_pages(job);
  }
  if (threads == 1) {
    for (const Job &job : jobs)
      for (int64_t unit = 0; unit < job.units(); ++unit) turn_unit(job, unit);
    return;
  }
  // Each tensor is shared out by itself: of a list of all blocks one thread would get the queries.
#pragma omp parallel num_threads(threads)
  for (const Job &job : jobs) {
    const int64_t units = job.units();
#pragma omp for schedule(static) nowait
    for (int64_t unit = 0; unit < units; ++unit) turn_unit(job, unit);
  }
}

void stay_alone() { forked = true; }

}  // namespace whereness
