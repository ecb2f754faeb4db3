#include "kernels.h"

namespace whereness {

void bind_rotary(nanobind::module_ &) {}

}  // namespace whereness
