/// What kernels have found wrong in calls that they carried out all the same, as the host tells it.
#include <fmt/format.h>

#include "expert_parallel/low_latency/host/call_context.hpp"

namespace tokenyard {

void LowLatency::Parts::raise_findings() {
  const std::lock_guard lock(findings_mutex_);
  raise_difference();
  raise_mistake();
}

void LowLatency::Parts::raise_difference() {
  for (const MaskedRank& masked : masks_.list()) {
    if (masked.why != MaskedRank::Why::differs || differences_raised_.contains(masked.rank))
      continue;
    differences_raised_.insert(masked.rank);
    const auto [argument, expected, seen] = low_latency::difference_of(masked);
    throw InvalidArgument(argument, fmt::format("{}, as on rank {}", expected, world.rank()), seen,
                          masked.rank);
  }
}

/// Once a dispatch.
void LowLatency::Parts::raise_mistake() {
  auto* const complaint = complaint_.as<low_latency::Complaint>();
  low_latency::Complaint::Record record{};
  uint32_t version = accelerator_.read_flag(&complaint->version), before = 0;
  do {
    if (version == complaint->heard) return;
    before = version;
    record = complaint->records[low_latency::Complaint::place(version)];
    version = accelerator_.read_flag(&complaint->version);
  } while (version != before);  // A dispatch changes it a few times at most.
  accelerator_.write_flag(&complaint->heard, version);
  throw InvalidArgument(
      "topk_idx", fmt::format("experts 0 to {}, or -1", options.experts - 1),
      fmt::format("expert {} in token {}, pick {}, of dispatch {}", record.id,
                  record.pick / options.topk, record.pick % options.topk, record.epoch));
}

}  // namespace tokenyard
