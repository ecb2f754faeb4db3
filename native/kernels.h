// What the files of this folder share.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

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

// Asks for pages of 2 MB before a large new output is written: to be given thousands of small ones
// takes longer than the writing. Only advice, so that it may fail.
inline void prefer_large_pages([[maybe_unused]] void *data, [[maybe_unused]] int64_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr int64_t page = 2 << 20;
  const uintptr_t begin = (uintptr_t(data) + page - 1) & -page;
  const uintptr_t end = (uintptr_t(data) + bytes) & -page;
  if (bytes >= 16 * page && begin < end)
    madvise(reinterpret_cast<void *>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace whereness
