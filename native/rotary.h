// Turning pairs of channels of tensors: what is to be done, as `rotary.cpp` does it.
//
// Axes: B batch, H heads, S tokens, D channels, P pairs. Strides count elements.
#pragma once

#include <cstdint>
#include <vector>

namespace whereness {

enum Type { FLOAT32, FLOAT64, BFLOAT16, FLOAT16 };
constexpr int64_t SIZES[] = {4, 8, 2, 2};

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

constexpr int64_t LITTLE = 32 << 10;  // channels that one thread turns sooner than two

// Uses as many threads as torch does.
void turn_all(std::vector<Job> &jobs);

// Threads of a parent are not there in a forked child, and OpenMP would wait for them forever.
void stay_alone();

}  // namespace whereness
