// Rows of float16, turned with the processor's own conversions where it has them.
#pragma once

#include <cstdint>

#include "numbers.h"

namespace whereness {

using TurnFloat16 = void(const float16 *x, float16 *out, const float *cos, const float *sin,
                         int64_t pairs, float sign);

bool has_f16c();
TurnFloat16 turn_half_f16c, turn_interleaved_f16c;

}  // namespace whereness
