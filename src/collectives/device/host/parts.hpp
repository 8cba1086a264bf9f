/// Arrays cut into a part per rank.
#pragma once

#include <fmt/format.h>

#include <vector>

#include "collectives/device/host/requests.hpp"
#include "tokenyard/error.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::device_collectives {

/// Cuts an array into a part per rank.
template <class View>
std::vector<View> cut(const char* counts_argument, const char* argument, const View& whole,
                      DataType type, const std::vector<uint64_t>& counts, uint32_t ranks) {
  if (counts.size() != ranks)
    throw InvalidArgument(counts_argument, fmt::format("{} numbers, one per rank", ranks),
                          fmt::format("{}", counts.size()));
  check_array(argument, whole);
  uint64_t all = 0;
  for (const uint64_t count : counts) {
    require(count <= UINT64_MAX - all, counts_argument, "a sum below 2^64", count);
    all += count;
  }
  check_parts(argument, whole, type, all);
  std::vector<View> parts;
  uint64_t before = 0;
  for (const uint64_t count : counts) {
    auto* const begin = whole.template as<std::byte>() + before * bytes_of(whole.type);
    parts.push_back(View{begin, whole.type, {count}});
    before += count;
  }
  return parts;
}

/// The same, where this rank's part has the elements of another array, `own`.
template <class View>
std::vector<View> parts_of(const char* argument, const View& whole, const char* own_argument,
                           const ConstTensorView& own, const std::vector<uint64_t>& counts,
                           const World& world) {
  const std::vector<View> parts = cut("counts", argument, whole, own.type, counts, world.size());
  check_array(own_argument, own);
  check_parts(own_argument, own, whole.type, counts[world.rank()]);
  return parts;
}

}  // namespace tokenyard::device_collectives
