#include "fabric/absence_watch.hpp"

namespace tokenyard {

AbsenceWatch::AbsenceWatch() : thread_([this](std::stop_token stop) { watch(std::move(stop)); }) {}
AbsenceWatch::~AbsenceWatch() = default;

std::optional<Absence> AbsenceWatch::longest(TimePoint from, TimePoint until) const {
  const std::lock_guard lock(mutex_);
  std::optional<Absence> found;
  const auto consider = [&](const Absence& absence) {
    const bool meets = absence.from <= until && absence.until >= from;
    if (meets && (!found || absence.length() > found->length())) found = absence;
  };
  for (const Absence& absence : absences_) consider(absence);
  // The calling thread may resume before the watching one.
  if (const auto now = since_last_tick()) consider(*now);
  return found;
}

void AbsenceWatch::watch(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (const auto absence = since_last_tick()) {
      absences_.push_back(*absence);
      if (absences_.size() > kKept) absences_.pop_front();
    }
    last_tick_ = Clock::now();
    stopped_.wait_for(lock, stop, kTick, [] { return false; });
  }
}

std::optional<Absence> AbsenceWatch::since_last_tick() const {
  const TimePoint now = Clock::now();
  if (now - last_tick_ < kTick + kLate) return std::nullopt;
  const auto ago =
      std::chrono::duration_cast<std::chrono::system_clock::duration>(now - last_tick_);
  return Absence{.from = last_tick_, .until = now, .since = std::chrono::system_clock::now() - ago};
}

}  // namespace tokenyard
