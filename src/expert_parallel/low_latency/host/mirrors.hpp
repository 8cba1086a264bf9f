/// Where this rank's kernels store what is for ranks without load/store: a mirror of each one's
/// window, of which only what this rank writes is ever used. The mirrors overlap, so that one
/// begins to be used where the others are not, and all together take about two windows.
#pragma once

#include <cstddef>
#include <vector>

#include "expert_parallel/low_latency/kernels/window.hpp"

namespace tokenyard::low_latency {

struct Mirrors {
  /// [mirrors] bytes from the beginning of the memory to where each mirrored window would begin;
  /// may be negative, as its first bytes need not exist.
  std::vector<std::ptrdiff_t> begins;
  size_t bytes = 0;

  /// `self`: the rank that writes them.
  static Mirrors of(const WindowLayout& layout, uint32_t self, uint32_t mirrors);
};

}  // namespace tokenyard::low_latency
