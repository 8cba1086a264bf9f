#include "fabric/abort_flag.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fabric/network_fault.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

/// Returns the shortest absence that peers with this timeout may have taken for this rank's death.
/// On a busy machine, a thread may well be late by less.
std::chrono::nanoseconds long_absence(std::chrono::nanoseconds timeout) {
  return std::max<std::chrono::nanoseconds>(timeout / 2, std::chrono::seconds(1));
}

}  // namespace

std::string after_goodbye(std::string phase, Failure failure) {
  return failure == Failure::left ? std::move(phase) + " (it left the world)" : std::move(phase);
}

AbortFlag::AbortFlag(Accelerator& accelerator, uint32_t ranks, std::chrono::nanoseconds timeout,
                     std::shared_ptr<const AbsenceWatch> absences)
    : accelerator_(accelerator),
      ranks_(ranks),
      timeout_(timeout),
      absences_(std::move(absences)),
      word_(static_cast<AbortWord*>(accelerator.allocate_shared((1 + ranks) * sizeof(AbortWord)))) {
}

AbortFlag::~AbortFlag() {
  accelerator_.free_shared(word_);
}

void AbortFlag::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  set_all(kCancelled);
}

void AbortFlag::left_out(uint32_t by) {
  const std::lock_guard lock(mutex_);
  if (left_out_by_) return;
  left_out_by_ = by;
  left_out_at_ = Clock::now();
  set_all(kCancelled);
}

void AbortFlag::lost(uint32_t rank) {
  const std::lock_guard lock(mutex_);
  gone_[rank].lost = true;
  set(abort_for_lost(rank));
  for (const std::span<AbortWord> words : watched_) set_one(words, rank, abort_for_lost(rank));
}

void AbortFlag::watch(std::span<AbortWord> words) {
  const std::lock_guard lock(mutex_);
  watched_.push_back(words);
  for (const auto& [rank, gone] : gone_)
    set_one(words, rank, gone.lost ? abort_for_lost(rank) : kLeft);
  if (!cancelled_ && !left_out_by_) return;
  for (AbortWord& word : words) accelerator_.write_flag(&word, kCancelled);
}

void AbortFlag::unwatch(std::span<AbortWord> words) {
  const std::lock_guard lock(mutex_);
  std::erase_if(watched_,
                [&](std::span<AbortWord> watched) { return watched.data() == words.data(); });
}

void AbortFlag::left(uint32_t rank) {
  const std::lock_guard lock(mutex_);
  gone_[rank].left = true;
  end_waits_for_unsent(rank);
}

void AbortFlag::gone_on(uint32_t rank) {
  const std::lock_guard lock(mutex_);
  Gone& gone = gone_[rank];
  gone.gone_on = true;
  // One that is lost since may not be said to have left.
  if (!gone.lost) end_waits_for_unsent(rank);
}

void AbortFlag::end_waits_for_unsent(uint32_t rank) {
  // In this order, so that a wait that sees the first word set also sees the rank's own.
  if (rank < ranks_) accelerator_.write_flag(word_ + 1 + rank, kLeft);
  if (rank < ranks_ && !is_set_ && accelerator_.read_flag(word_) != kRefused)
    accelerator_.write_flag(word_, kLeft);
  for (const std::span<AbortWord> words : watched_) set_one(words, rank, kLeft);
}

std::vector<uint32_t> AbortFlag::ranks_that(const How& how) const {
  const std::lock_guard lock(mutex_);
  std::vector<uint32_t> ranks;
  for (const auto& [rank, gone] : gone_)
    if (how(gone)) ranks.push_back(rank);
  return ranks;
}

void AbortFlag::on_refusal(std::function<void(const std::string& phase)> check) {
  const std::lock_guard lock(mutex_);
  check_refused_ = std::move(check);
}

void AbortFlag::check_refused(const std::string& phase) const {
  std::function<void(const std::string& phase)> check;
  std::optional<NetworkFault::Facts> failed;
  {
    const std::lock_guard lock(mutex_);
    check = check_refused_;
    failed = failed_network_;
  }
  if (check) check(phase);
  if (!failed) return;
  failed->phase = phase;
  throw NetworkFault(*failed);
}

void AbortFlag::forget_refusal(const std::function<bool()>& remains) {
  const std::lock_guard lock(mutex_);
  if (failed_network_ || accelerator_.read_flag(word_) != kRefused) return;
  const bool any_left = std::ranges::any_of(
      gone_, [](const auto& gone) { return gone.second.left || gone.second.gone_on; });
  accelerator_.write_flag(word_, any_left ? kLeft : kNoAbort);
  if (remains()) accelerator_.write_flag(word_, kRefused);
}

void AbortFlag::network_failed(const NetworkFault::Facts& facts) {
  const std::lock_guard lock(mutex_);
  if (!failed_network_) failed_network_ = facts;
  if (!is_set_) accelerator_.write_flag(word_, kRefused);
  for (const std::span<AbortWord> words : watched_)
    set_one(words, facts.peer, abort_for_lost(facts.peer));
}

void AbortFlag::check_left_out(const WaitFacts& facts) const {
  WaitFacts published = facts;
  TimePoint at;
  {
    const std::lock_guard lock(mutex_);
    if (!left_out_by_) return;
    published.rank = *left_out_by_;
    at = left_out_at_;
  }
  const auto absence = absence_around(at - timeout_, at);
  throw OutOfTouch(published, absence ? std::optional(absence->since) : std::nullopt,
                   absence ? absence->length() : std::chrono::nanoseconds(0), true);
}

bool AbortFlag::has_ended() const {
  const std::lock_guard lock(mutex_);
  const bool lost = std::ranges::any_of(gone_, [](const auto& gone) { return gone.second.lost; });
  return lost || cancelled_ || left_out_by_.has_value();
}

void AbortFlag::check_ended(const std::string& phase) const {
  if (cancelled()) throw Cancelled(phase);
  check_left_out({.phase = phase});
}

std::optional<Absence> AbortFlag::absence_around(TimePoint from, TimePoint until) const {
  if (absences_ == nullptr) return std::nullopt;
  const auto absence = absences_->longest(from, until);
  return absence && absence->length() >= long_absence(timeout_) ? absence : std::nullopt;
}

void AbortFlag::check_absence(const WaitFacts& facts) const {
  check_left_out(facts);
  const auto now = Clock::now();
  const auto waited = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(facts.waited_s));
  TimePoint from = now - waited, until = now;
  {
    const std::lock_guard lock(mutex_);
    if (const auto gone = gone_.find(facts.rank); gone != gone_.end()) {
      until = gone->second.at;
      from = until - timeout_;
    }
  }
  if (const auto absence = absence_around(from, until))
    throw OutOfTouch(facts, absence->since, absence->length(), false);
}

void AbortFlag::check(const std::string& phase) const {
  if (cancelled()) throw Cancelled(phase);
  const std::vector<uint32_t> lost = lost_ranks();
  if (!lost.empty()) throw PeerLost(WaitFacts{.rank = lost.front(), .phase = phase});
}

void AbortFlag::set_all(AbortWord abort_flag) {
  set(abort_flag);
  for (const std::span<AbortWord> words : watched_)
    for (AbortWord& word : words) accelerator_.write_flag(&word, abort_flag);
}

void AbortFlag::set_one(std::span<AbortWord> words, uint32_t rank, AbortWord abort_flag) {
  if (rank < words.size()) accelerator_.write_flag(&words[rank], abort_flag);
}

void AbortFlag::set(AbortWord abort_flag) {
  if (is_set_) return;
  is_set_ = true;
  accelerator_.write_flag(word_, abort_flag);
}

ErrorRecord::ErrorRecord(Accelerator& accelerator, AbortFlag& abort_flag)
    : accelerator_(accelerator),
      abort_flag_(abort_flag),
      failed_(accelerator, sizeof(uint32_t), DeviceMemory::Kind::device),
      report_(accelerator, sizeof(WaitReport), DeviceMemory::Kind::shared) {}

WaitContext ErrorRecord::wait_context(std::chrono::nanoseconds timeout) const {
  return {.timeout_ns = static_cast<uint64_t>(std::max<int64_t>(timeout.count(), 0)),
          .failed = failed_.as<uint32_t>(),
          .abort_flag = abort_flag_.word(),
          .report = report_.as<WaitReport>()};
}

void ErrorRecord::clear() {
  accelerator_.fill(failed_.as<void>(), 0, sizeof(uint32_t), Stream{});
  accelerator_.write_flag(&report_.as<WaitReport>()->failure, static_cast<uint32_t>(Failure::none));
}

bool ErrorRecord::failed() const {
  // The kernel writes `failure` last, with release, so the rest of the report is visible with it.
  return accelerator_.read_flag(&report().failure) != static_cast<uint32_t>(Failure::none);
}

void ErrorRecord::check(std::span<const std::string> phases, const Culprit& culprit) const {
  if (!failed()) return;
  WaitFacts facts{.rank = report().rank,
                  .phase = report().phase < phases.size() ? phases[report().phase]
                                                          : fmt::format("phase {}", report().phase),
                  .expected = report().expected,
                  .seen = report().seen,
                  .waited_s = static_cast<double>(report().waited_ns) * 1e-9};
  switch (static_cast<Failure>(report().failure)) {
    case Failure::none:
    case Failure::refused:
      return;
    case Failure::deadline:
      abort_flag_.check_refused(facts.phase);
      [[fallthrough]];
    case Failure::left: {
      const uint32_t awaited = facts.rank;
      if (culprit) culprit(facts);
      abort_flag_.check_absence(facts);
      const bool is_awaited = facts.rank == awaited;
      const bool left = is_awaited && static_cast<Failure>(report().failure) == Failure::left;
      if (left || abort_flag_.has_left(facts.rank)) {
        facts.phase = after_goodbye(facts.phase);
        throw PeerLost(facts);
      }
      const std::vector<uint32_t> lost = abort_flag_.lost_ranks();
      if (!is_awaited && std::ranges::binary_search(lost, facts.rank)) throw PeerLost(facts);
      throw PeerTimeout(facts);
    }
    case Failure::network: {
      const auto fault = NetworkFaultDetail::of(report().detail);
      // A wait that the network's abort word has ended knows no more than that. Of a connection the
      // network knows the cause, and whether the job tells that the peer is gone.
      if (report().detail == 0 || fault.check == static_cast<uint32_t>(NetworkCheck::connection))
        abort_flag_.check_refused(facts.phase);
      if (const auto gone = abort_flag_.gone_ranks();
          !gone.empty() && abort_flag_.lost_ranks().empty()) {
        facts.rank = gone.front();
        facts.phase = after_goodbye(facts.phase);
        throw PeerLost(facts);
      }
      if (!abort_flag_.has_ended())
        throw network_fault(fault, facts.rank, facts.phase, facts.expected, facts.seen);
      break;
    }
    case Failure::abort_flag:
      break;
  }
  if (abort_flag_.cancelled()) throw Cancelled(facts.phase);
  abort_flag_.check_left_out(facts);
  // The awaited rank may be alive and itself waiting for the lost one.
  const std::vector<uint32_t> lost = abort_flag_.lost_ranks();
  if (lost.empty()) throw InternalError("a kernel saw its abort flag set, but no rank was lost");
  if (!std::binary_search(lost.begin(), lost.end(), facts.rank)) facts.rank = lost.front();
  abort_flag_.check_absence(facts);
  throw PeerLost(facts);
}

}  // namespace tokenyard
