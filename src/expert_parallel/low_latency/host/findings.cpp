#include "expert_parallel/low_latency/host/findings.hpp"

#include <fmt/format.h>

namespace tokenyard::low_latency {

void Findings::raise(const RankMasks& masks) {
  const std::lock_guard lock(mutex_);
  raise_difference(masks);
  raise_mistake();
}

void Findings::forget(uint32_t rank) {
  const std::lock_guard lock(mutex_);
  differences_raised_.erase(rank);
}

void Findings::raise_difference(const RankMasks& masks) {
  for (const FailedRank& masked : masks.list()) {
    if (masked.why != FailedRank::Why::differs || differences_raised_.contains(masked.rank))
      continue;
    differences_raised_.insert(masked.rank);
    const auto [argument, expected, seen] = difference_of(masked);
    throw InvalidArgument(argument, fmt::format("{}, as on rank {}", expected, setup_.world.rank()),
                          seen, masked.rank);
  }
}

/// Raises each dispatch's mistake once.
void Findings::raise_mistake() {
  Accelerator& accelerator = setup_.accelerator;
  RemoteError* const remote_error = this->remote_error();
  RemoteError::Record record{};
  uint32_t version = accelerator.read_flag(&remote_error->version), before = 0;
  do {
    if (version == remote_error->heard) return;
    before = version;
    record = remote_error->records[RemoteError::place(version)];
    version = accelerator.read_flag(&remote_error->version);
  } while (version != before);  // A dispatch changes it a few times at most.
  accelerator.write_flag(&remote_error->heard, version);
  const uint32_t experts = setup_.options.experts;
  throw InvalidArgument("topk_idx", fmt::format("experts 0 to {}, or -1", experts - 1),
                        fmt::format("expert {} in token {}, choice {}, of dispatch {}",
                                    not_misplaced(record.id, experts, setup_.places()),
                                    record.choice / setup_.options.topk,
                                    record.choice % setup_.options.topk, record.epoch));
}

}  // namespace tokenyard::low_latency
