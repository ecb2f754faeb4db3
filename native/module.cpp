// The Python face of the kernels: plain functions over raw pointers, sizes and strides.
#include <nanobind/nanobind.h>

#include "kernels.h"

NB_MODULE(_native, m) {
  m.doc() = "Compiled kernels. Arguments are trusted: whereness.kernels.native checks them.";
  whereness::bind_rotary(m);
  whereness::bind_tables(m);
  whereness::bind_diagonals(m);
}
