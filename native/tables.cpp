#include "kernels.h"

namespace whereness {

void bind_tables(nanobind::module_ &) {}

}  // namespace whereness
