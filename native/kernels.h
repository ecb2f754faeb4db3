// What the files of this folder share.
#pragma once

#include <nanobind/nanobind.h>

namespace whereness {

void bind_rotary(nanobind::module_ &m);
void bind_tables(nanobind::module_ &m);
void bind_diagonals(nanobind::module_ &m);

// Compiled once for each of these instruction sets; the loader picks what the machine has.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WHERENESS_CLONES \
  __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define WHERENESS_CLONES
#endif

}  // namespace whereness
