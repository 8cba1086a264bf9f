#include "expert_parallel/low_latency/host/rank_masks.hpp"

#include <fmt/format.h>

#include <array>

#include "tokenyard/error.hpp"

namespace tokenyard::low_latency {

namespace {

FailedRank::Why why(Failure failure, Phase phase) {
  if (phase == Phase::rows_format || phase == Phase::sums_format) return FailedRank::Why::differs;
  switch (failure) {
    case Failure::refused:
      return FailedRank::Why::left_out;
    case Failure::abort_flag:
    case Failure::left:
      return FailedRank::Why::lost;
    case Failure::none:
    case Failure::deadline:
    case Failure::network:
      break;
  }
  return FailedRank::Why::timeout;
}

/// Returns the value of a wait to show: for a stamp, its epoch.
uint64_t shown(Phase phase, uint64_t awaited) {
  const auto word = static_cast<uint32_t>(awaited);
  if (phase == Phase::dispatch_ids) return IdsStamp{word}.epoch();
  return phase == Phase::combine_weights ? epoch_of_weights(word) : awaited;
}

}  // namespace

FormatDifference difference_of(const FailedRank& masked) {
  constexpr std::array rows{"bf16", "fp8", "fp8_rounded", "fp8_ue8m0"};
  static_assert(rows.size() == IdsStamp::kFormats);
  constexpr std::array logfmt{"False", "True"};
  const bool of_rows = masked.phase == phase_names()[static_cast<uint32_t>(Phase::rows_format)];
  const auto name = [&](uint64_t format) { return of_rows ? rows.at(format) : logfmt.at(format); };
  return {of_rows ? "rows" : "use_logfmt", name(masked.expected), name(masked.seen)};
}

namespace {

std::string text_of(const FailedRank& failed) {
  using Why = FailedRank::Why;
  const WaitFacts facts{failed.rank, failed.phase, failed.expected, failed.seen, failed.waited_s};
  switch (failed.why) {
    case Why::timeout:
      return PeerTimeout(facts).what();
    case Why::lost:
      return PeerLost(facts).what();
    case Why::differs: {
      const auto [argument, here, there] = difference_of(failed);
      return fmt::format("rank {} differs in {}: expected {}, seen {}", failed.rank, argument, here,
                         there);
    }
    case Why::left_out:
      break;
  }
  return fmt::format("rank {} was {}", failed.rank, failed.phase);
}

}  // namespace

RankMasks::RankMasks(Accelerator& accelerator, AbortFlag& abort_flag, uint32_t ranks)
    : accelerator_(accelerator),
      abort_flag_(abort_flag),
      ranks_(ranks),
      failed_(accelerator, ranks * sizeof(uint32_t), DeviceMemory::Kind::device),
      reports_(accelerator, ranks * sizeof(WaitReport), DeviceMemory::Kind::shared),
      abort_flags_(accelerator, ranks * sizeof(AbortWord), DeviceMemory::Kind::shared) {
  abort_flag_.watch(abort_flags());
}

RankMasks::~RankMasks() {
  abort_flag_.unwatch(abort_flags());
}

bool RankMasks::reported(uint32_t rank) const {
  // A kernel writes `failure` last, with release, so a thread that sees it also sees the rest.
  return accelerator_.read_flag(&masks().reports[rank].failure) !=
         static_cast<uint32_t>(Failure::none);
}

bool RankMasks::masked(uint32_t rank) const {
  return left_out_.contains(rank) || reported(rank);
}

std::vector<FailedRank> RankMasks::list() const {
  std::vector<FailedRank> list;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!reported(rank)) {
      if (left_out_.contains(rank))
        list.push_back({.rank = rank,
                        .why = FailedRank::Why::left_out,
                        .phase = absent(rank)
                                     ? "absent from the start: its slot is empty"
                                     : phase_names()[static_cast<uint32_t>(Phase::left_out)]});
      continue;
    }
    const WaitReport& report = masks().reports[rank];
    const auto phase = static_cast<Phase>(report.phase);
    list.push_back(
        {.rank = rank,
         .why = why(static_cast<Failure>(report.failure), phase),
         .phase = after_goodbye(phase_names()[report.phase], static_cast<Failure>(report.failure)),
         .expected = shown(phase, report.expected),
         .seen = shown(phase, report.seen),
         .waited_s = static_cast<double>(report.waited_ns) * 1e-9});
  }
  for (FailedRank& failed : list) failed.text = text_of(failed);
  return list;
}

void RankMasks::log_changes(const Log& log, uint64_t epoch) {
  for (const FailedRank& failed : list()) {
    if (logged_.contains(failed.rank)) continue;
    using Why = FailedRank::Why;
    const bool is_news = failed.why == Why::timeout || failed.why == Why::differs;
    log.write(is_news ? LogLevel::warning : LogLevel::info, epoch,
              fmt::format("low latency masks rank {}: {}", failed.rank, failed.text));
    logged_.insert(failed.rank);
  }
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!logged_.contains(rank) || masked(rank)) continue;
    log.write(LogLevel::info, epoch, fmt::format("low latency masks rank {} no more", rank));
    logged_.erase(rank);
  }
}

void RankMasks::leave_out(uint32_t rank, Stream stream) {
  // Only the lowest byte: the word may already hold the reason why the rank is masked.
  accelerator_.fill(masks().failed + rank, static_cast<int>(Failure::refused), 1, stream);
  left_out_.insert(rank);
}

void RankMasks::leave_absent(uint32_t rank, Stream stream) {
  absent_.insert(rank);
  leave_out(rank, stream);
}

void RankMasks::clear(uint32_t rank, Stream stream) {
  left_out_.erase(rank);
  accelerator_.fill(masks().failed + rank, 0, sizeof(uint32_t), stream);
  accelerator_.write_flag(&masks().reports[rank].failure, static_cast<uint32_t>(Failure::none));
}

}  // namespace tokenyard::low_latency
