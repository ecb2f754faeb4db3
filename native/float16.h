// Turning rows of float16 on processors that convert it (F16C).
#pragma once

namespace whereness {

struct Run;

bool has_f16c();

// Each of one head and of two; only where has_f16c().
void turn_f16c_half(const Run &);
void turn_f16c_half_2(const Run &);
void turn_f16c_interleaved(const Run &);
void turn_f16c_interleaved_2(const Run &);

}  // namespace whereness
