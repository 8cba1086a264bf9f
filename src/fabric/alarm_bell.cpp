#include "fabric/alarm_bell.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

void insert_sorted(std::vector<uint32_t>& ranks, uint32_t rank) {
  const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank);
  if (at == ranks.end() || *at != rank) ranks.insert(at, rank);
}

}  // namespace

AlarmBell::AlarmBell(Accelerator& accelerator)
    : accelerator_(accelerator),
      word_(static_cast<Alarm*>(accelerator.allocate_shared(sizeof(Alarm)))) {}

AlarmBell::~AlarmBell() {
  accelerator_.free_shared(word_);
}

void AlarmBell::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  ring(kCancelled);
  for (const std::span<Alarm> words : watched_)
    for (Alarm& word : words) accelerator_.write_flag(&word, kCancelled);
}

void AlarmBell::lost(uint32_t rank) {
  const std::lock_guard lock(mutex_);
  insert_sorted(lost_, rank);
  ring(alarm_for_lost(rank));
  for (const std::span<Alarm> words : watched_) ring_one(words, rank);
}

void AlarmBell::watch(std::span<Alarm> words) {
  const std::lock_guard lock(mutex_);
  watched_.push_back(words);
  for (const uint32_t rank : lost_) ring_one(words, rank);
  if (!cancelled_) return;
  for (Alarm& word : words) accelerator_.write_flag(&word, kCancelled);
}

void AlarmBell::unwatch(std::span<Alarm> words) {
  const std::lock_guard lock(mutex_);
  std::erase_if(watched_, [&](std::span<Alarm> watched) { return watched.data() == words.data(); });
}

void AlarmBell::left(uint32_t rank) {
  const std::lock_guard lock(mutex_);
  insert_sorted(left_, rank);
}

std::vector<uint32_t> AlarmBell::gone_ranks() const {
  const std::lock_guard lock(mutex_);
  std::vector<uint32_t> gone = lost_;
  for (const uint32_t rank : left_) insert_sorted(gone, rank);
  return gone;
}

std::vector<uint32_t> AlarmBell::lost_ranks() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

bool AlarmBell::has_left(uint32_t rank) const {
  const std::lock_guard lock(mutex_);
  return std::binary_search(left_.begin(), left_.end(), rank);
}

void AlarmBell::check(const std::string& phase) const {
  const std::lock_guard lock(mutex_);
  if (cancelled_) throw Cancelled(phase);
  if (!lost_.empty()) throw PeerLost(WaitFacts{.rank = lost_.front(), .phase = phase});
}

void AlarmBell::ring_one(std::span<Alarm> words, uint32_t rank) {
  if (rank < words.size()) accelerator_.write_flag(&words[rank], alarm_for_lost(rank));
}

void AlarmBell::ring(Alarm alarm) {
  if (rung_) return;
  rung_ = true;
  accelerator_.write_flag(word_, alarm);
}

FailureCell::FailureCell(Accelerator& accelerator, AlarmBell& bell)
    : accelerator_(accelerator),
      bell_(bell),
      failed_(accelerator, sizeof(uint32_t), DeviceMemory::Kind::device),
      report_(accelerator, sizeof(WaitReport), DeviceMemory::Kind::shared) {}

Patience FailureCell::patience(std::chrono::nanoseconds timeout) const {
  return {.timeout_ns = static_cast<uint64_t>(std::max<int64_t>(timeout.count(), 0)),
          .failed = failed_.as<uint32_t>(),
          .alarm = bell_.word(),
          .report = report_.as<WaitReport>()};
}

bool FailureCell::failed() const {
  // The kernel writes `failure` last, with release: once it is seen, so is the rest.
  return accelerator_.read_flag(&report().failure) != static_cast<uint32_t>(Failure::none);
}

void FailureCell::check(std::span<const std::string> phases) const {
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
      if (bell_.has_left(facts.rank)) {
        facts.phase += " (it left the world)";
        throw PeerLost(facts);
      }
      throw PeerTimeout(facts);
    case Failure::alarm:
      break;
  }
  if (bell_.cancelled()) throw Cancelled(facts.phase);
  // The rank that was awaited may be alive and waiting for the lost one itself.
  const std::vector<uint32_t> lost = bell_.lost_ranks();
  if (lost.empty()) throw InternalError("a kernel heard an alarm that nobody rang");
  if (!std::binary_search(lost.begin(), lost.end(), facts.rank)) facts.rank = lost.front();
  throw PeerLost(facts);
}

}  // namespace tokenyard
