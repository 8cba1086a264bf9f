#include "collectives/device/host/call_errors.hpp"

#include <fmt/format.h>

#include "collectives/device/host/requests.hpp"
#include "collectives/device/kernels/wait_phase.hpp"
#include "collectives/device/kernels/window.hpp"

namespace tokenyard::device_collectives {

namespace {

[[noreturn]] void throw_other_counts(const WaitReport& report, const Members& members) {
  if (report.phase == static_cast<uint32_t>(WaitPhase::counts)) {
    const uint64_t sent = report.expected & ((uint64_t{1} << CountWord::kBits) - 1);
    throw InvalidArgument("received",
                          fmt::format("{} bytes from rank {}, as it sends", sent,
                                      members.slots[report.expected >> CountWord::kBits]),
                          fmt::format("{} bytes", report.seen), report.rank);
  }
  const auto text = [](uint64_t description) {
    const auto label = static_cast<uint32_t>(description >> 32);
    return fmt::format("{} bytes of {} with tag {}", static_cast<uint32_t>(description),
                       name_of(static_cast<DataType>(label & 255)), label >> 8);
  };
  throw InvalidArgument("message", text(report.expected), text(report.seen), report.rank);
}

[[noreturn]] void throw_difference(const WaitReport& report, const Members& members) {
  const uint32_t first = members.slots.front();
  if (report.phase == static_cast<uint32_t>(WaitPhase::message) ||
      report.phase == static_cast<uint32_t>(WaitPhase::counts))
    throw_other_counts(report, members);
  if (report.phase == static_cast<uint32_t>(WaitPhase::splits))
    throw InvalidArgument(
        "splits", fmt::format("counts of elements, {} bytes in all at most", report.expected),
        "others", report.rank);
  if (report.phase == static_cast<uint32_t>(WaitPhase::capacity))
    throw InvalidArgument("result",
                          fmt::format("memory for {} bytes that others send", report.seen),
                          fmt::format("{} bytes", report.expected), report.rank);
  if (report.phase == static_cast<uint32_t>(WaitPhase::size)) {
    const uint64_t expected = Signature::bytes_of(report.expected);
    const uint64_t seen = Signature::bytes_of(report.seen);
    if (expected == seen)
      throw InvalidArgument("factor", fmt::format("rank {}'s", first), "another", report.rank);
    throw InvalidArgument("size", fmt::format("{} bytes as on rank {}", expected, first),
                          fmt::format("{} bytes", seen), report.rank);
  }
  const auto text = [](uint64_t what) {
    return describe({.what = static_cast<uint32_t>(what), .size = 0});
  };
  throw InvalidArgument("call", fmt::format("{} as on rank {}", text(report.expected), first),
                        text(report.seen), report.rank);
}

}  // namespace

void check_calls(const ErrorRecord& errors, const Members& members) {
  if (!errors.failed()) return;
  errors.check(phase_names());
  throw_difference(errors.report(), members);
}

}  // namespace tokenyard::device_collectives
