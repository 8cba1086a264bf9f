#include "megakernel/proofs/declared_access.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "megakernel/proofs/triggers.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {

namespace {

/// Returns the entry whose range holds the address, or the first one behind it.
template <class Map>
auto entry_at(const Map& map, uint64_t address, auto end_of) {
  auto next = map.upper_bound(address);
  if (next != map.begin() && end_of(std::prev(next)->second) > address) --next;
  return next;
}

uint64_t end_of(const Graph::Placed& placed) {
  return placed.end;
}
uint64_t end_of(const Graph::Reached& reached) {
  return reached.end;
}

}  // namespace

DeclaredAccess::DeclaredAccess(const Graph& graph) : graph_(graph) {
  for (const Graph::TaskNode& node : graph.tasks()) {
    OfTask& task = tasks_.emplace_back();
    note(task.reads, node.reads);
    note(task.reads, node.streams);
    note(task.writes, node.writes);
    note(task.adds, node.adds);
    note(task.adds, node.writes);
    note(task.streams, node.streams);
  }
}

/// Adds the addresses of regions, and merges ranges that overlap or adjoin.
void DeclaredAccess::note(std::vector<Range>& ranges, const std::vector<Region>& regions) const {
  for (const Region& region : regions) {
    const std::vector<ConstTensorView>& places = graph_.tensors()[region.tensor].places;
    const bool everywhere = places.size() == graph_.place().ranks;
    if (region.begin == region.end || places.empty()) continue;
    if (!everywhere && region.rank != graph_.place().rank) continue;
    const auto base = reinterpret_cast<uint64_t>(places[everywhere ? region.rank : 0].data);
    ranges.push_back({base + region.begin, base + region.end});
  }
  std::ranges::sort(ranges, {}, &Range::begin);
  std::vector<Range> merged;
  for (const Range& range : ranges)
    if (!merged.empty() && range.begin <= merged.back().end)
      merged.back().end = std::max(merged.back().end, range.end);
    else
      merged.push_back(range);
  ranges = std::move(merged);
}

std::string DeclaredAccess::where(uint64_t begin, uint64_t end) const {
  const auto placed = entry_at(graph_.placed(), begin, [](const auto& of) { return end_of(of); });
  if (placed != graph_.placed().end() && placed->first <= begin)
    return fmt::format("bytes [{}, {}) of tensor '{}' of rank {}", begin - placed->first,
                       std::min(end, placed->second.end) - placed->first,
                       graph_.tensors()[placed->second.tensor].name, placed->second.rank);
  const auto reached = entry_at(graph_.reached(), begin, [](const auto& of) { return end_of(of); });
  if (reached != graph_.reached().end() && reached->first <= begin)
    return fmt::format("bytes [{}, {}) of a piece of {} bytes, outside all tensors",
                       begin - reached->first, end - reached->first,
                       reached->second.end - reached->first);
  return fmt::format("{} bytes at {:#x}, outside all pieces of the graph", end - begin, begin);
}

std::optional<DeclaredAccess::Fault> DeclaredAccess::fault(uint32_t task, uint64_t begin,
                                                           uint64_t end, AccessKind access) const {
  const OfTask& allowed = tasks_[task];
  const std::vector<Range>& ranges = access == AccessKind::read    ? allowed.reads
                                     : access == AccessKind::write ? allowed.writes
                                     : access == AccessKind::add   ? allowed.adds
                                                                   : allowed.streams;
  const bool writes = access == AccessKind::write || access == AccessKind::add;
  while (begin < end) {
    // Skip what one declared range allows.
    const auto range = std::ranges::upper_bound(ranges, begin, {}, &Range::begin);
    if (range != ranges.begin() && std::prev(range)->end > begin) {
      begin = std::prev(range)->end;
      continue;
    }
    uint64_t until = range == ranges.end() ? end : std::min(end, range->begin);
    // The next bytes that lie in one tensor, or in none.
    const auto placed = entry_at(graph_.placed(), begin, [](const auto& of) { return end_of(of); });
    const bool in_tensor = placed != graph_.placed().end() && placed->first <= begin;
    if (placed != graph_.placed().end())
      until = std::min(until, in_tensor ? placed->second.end : placed->first);
    if (in_tensor) return Fault{begin, until, where(begin, until)};
    const auto reached =
        entry_at(graph_.reached(), begin, [](const auto& of) { return end_of(of) + of.guard; });
    if (reached != graph_.reached().end()) {
      const auto& [first, piece] = *reached;
      const bool inside = first <= begin;
      until = std::min(until, !inside             ? first
                              : begin < piece.end ? piece.end
                                                  : piece.end + piece.guard);
      if (inside && (writes || begin >= piece.end)) return Fault{begin, until, where(begin, until)};
    }
    begin = until;
  }
  return std::nullopt;
}

void DeclaredAccess::check(uint32_t task, const TouchedRange& touch) const {
  if (touch.bytes() == 0) return;
  const auto check_range = [&](uint64_t begin, uint64_t end) {
    const std::optional<Fault> found = fault(task, begin, end, touch.access);
    if (!found) return;
    throw InvalidGraph(
        GraphFault::undeclared_access,
        {task_name(graph_, task), fmt::format("{} {}", verb(touch.access), found->where),
         fmt::format("through its argument {}, without declaring it", touch.argument)},
        fmt::format("regions that cover all memory that the arguments of '{}' reach",
                    graph_.tasks()[task].name));
  };
  if (touch.among) {
    // Any byte up to the end of the tensor that holds the first one.
    const auto placed =
        entry_at(graph_.placed(), touch.address, [](const auto& of) { return end_of(of); });
    const bool in_tensor = placed != graph_.placed().end() && placed->first <= touch.address;
    check_range(touch.address, in_tensor ? placed->second.end : touch.address + touch.bytes());
    return;
  }
  if (touch.rows == 1 || touch.stride <= touch.row_bytes ||
      !fault(task, touch.address, touch.address + touch.bytes(), touch.access))
    return check_range(touch.address, touch.address + touch.bytes());
  for (uint64_t row = 0; row < touch.rows; ++row) {
    const uint64_t begin = touch.address + row * touch.stride;
    check_range(begin, begin + touch.row_bytes);
  }
}

void DeclaredAccess::check_arguments() const {
  for (uint32_t task = 0; task < tasks_.size(); ++task) {
    const Touches touches = graph_.touches_of(task);
    for (const TouchedRange& touch : touches.list()) check(task, touch);
  }
}

}  // namespace tokenyard::megakernel
