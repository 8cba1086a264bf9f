#include "expert_parallel/low_latency/host/mirrors.hpp"

#include <algorithm>
#include <iterator>
#include <map>

namespace tokenyard::low_latency {

namespace {

constexpr size_t kLine = 128;

size_t whole_lines(size_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

/// Ranges that are in use: begin -> end.
using Used = std::map<size_t, size_t>;

/// Returns how far a range must move to lie behind a used one that it meets; 0 if it meets none.
size_t to_be_free(const Used& used, size_t begin, size_t bytes) {
  const auto after = used.lower_bound(begin + bytes);
  if (after == used.begin()) return 0;
  const size_t end = std::prev(after)->second;
  return end > begin ? end - begin : 0;
}

}  // namespace

Mirrors Mirrors::of(const WindowLayout& layout, uint32_t self, uint32_t mirrors) {
  const auto ranges = layout.written_by(self);
  size_t lowest = SIZE_MAX;
  for (const auto& range : ranges) lowest = std::min(lowest, range.begin);
  lowest = lowest / kLine * kLine;
  Mirrors made;
  Used used;
  size_t shift = 0;
  for (uint32_t mirror = 0; mirror < mirrors; ++mirror) {
    for (size_t further = 1; further != 0;) {
      further = 0;
      for (const auto& range : ranges)
        further = std::max(further, to_be_free(used, range.begin - lowest + shift, range.bytes));
      shift += whole_lines(further);
    }
    for (const auto& range : ranges) {
      const size_t begin = range.begin - lowest + shift;
      used[begin] = begin + range.bytes;
      made.bytes = std::max(made.bytes, begin + range.bytes);
    }
    made.begins.push_back(static_cast<std::ptrdiff_t>(shift) - static_cast<std::ptrdiff_t>(lowest));
  }
  made.bytes = whole_lines(made.bytes);
  return made;
}

}  // namespace tokenyard::low_latency
