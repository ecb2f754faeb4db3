// The Python face of the kernels: plain functions over raw pointers, sizes and strides.
#include <nanobind/nanobind.h>

#include "kernels.h"

NB_MODULE(_native, m) {
  m.doc() = "Compiled kernels. whereness.kernels calls them, and checks what they trust.";
  whereness::bind_rotary(m);
  whereness::bind_tables(m);
  whereness::bind_diagonals(m);
}
