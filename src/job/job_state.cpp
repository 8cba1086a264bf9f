#include "job/job_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "base/environment.hpp"
#include "control/shared_register.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/fd_exchange.hpp"
#include "fabric/gather.hpp"
#include "net/address.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

using collectives::Engine;
using collectives::EngineOptions;
using collectives::GroupIdentity;
using collectives::Instant;
using collectives::ProgressThread;
using collectives::ProgressThreadOptions;
using collectives::Recovery;
using collectives::WireOptions;
using collectives::WireTransport;
using control::Slot;
using control::View;

namespace {

/// How long the end of a job waits until others have received its messages.
constexpr std::chrono::nanoseconds farewell_max = std::chrono::seconds(1);

Instant since_start() {
  return std::chrono::duration_cast<Instant>(std::chrono::steady_clock::now().time_since_epoch());
}

JobOptions with_host(JobOptions options) {
  if (options.host.empty()) options.host = host_name().value_or("");
  return options;
}

void check(const JobOptions& options, const JobTerms& terms) {
  const uint32_t places = std::max(options.size, options.size_max);
  if (options.size == 0) throw InvalidArgument("size", "at least 1", "0");
  if (options.rank >= (terms.entrance == JobTerms::Entrance::join ? places : options.size)) {
    throw InvalidArgument("rank", fmt::format("less than {}", places),
                          fmt::to_string(options.rank));
  }
  if (options.timeout <= std::chrono::nanoseconds(0)) {
    throw InvalidArgument("timeout", "a positive time", "none");
  }
  collectives::check_eager_limit(options.eager_limit);
  if (!options.interrupt) throw InvalidArgument("interrupt", "a function", "nothing");
}

}  // namespace

control::ControlOptions control_options(const JobOptions& options, const JobTerms& terms) {
  control::ControlOptions control;
  control.store = options.store;
  control.host_store = options.host_store;
  control.sole_host = terms.sole_host;
  control.own_store = options.own_store;
  control.job = options.job;
  control.secret = options.secret;
  control.slot = options.rank;
  control.slots = options.size;
  control.slots_max = std::max(options.size, options.size_max);
  control.address = options.address.empty() ? net::own_address(control::tcp_address(options.store))
                                            : options.address;
  control.timeout = options.timeout;
  control.farewell = terms.farewell;
  control.witness_in_store = !terms.witness_in_memory;
  control.membership.silence = options.silence;
  control.membership.witness = options.witness;
  control.membership.evict_stalled = options.on_failure == OnFailure::exclude;
  control.interrupt = options.interrupt;
  return control;
}

Job::State::State(const JobOptions& options, const JobTerms& terms)
    : options(with_host(options)), ranks_(options.rank, std::max(options.size, options.size_max)) {
  check(options, terms);
  control::ControlOptions plane = control_options(options, terms);
  address_ = plane.address;
  control_ = std::make_unique<control::Control>(std::move(plane), &ranks_);
  ranks_.use(*control_);
  transport_ = std::make_shared<WireTransport>(WireOptions{.self = control_->self(),
                                                           .job = options.job,
                                                           .secret = options.secret,
                                                           .host = this->options.host,
                                                           .address = address_});
  engine_ = std::make_unique<Engine>(
      transport_,
      EngineOptions{
          .self = options.rank, .on_failure = options.on_failure, .places = options.places},
      since_start);
  engine_->use(*control_);
  recovery_ = std::make_unique<Recovery>(*engine_, *control_);
  progress_thread_ = std::make_unique<ProgressThread>(
      *engine_, *transport_, ProgressThreadOptions{.interrupt = options.interrupt});
  progress_thread_->on_news([this] { publish_changes(); });
  // It admits replacements that no caller asks for.
  if (options.on_failure == OnFailure::retry) progress_thread_->start();

  GroupIdentity world = {.id = 0, .name = "world", .slots = {}, .self = options.rank};
  world.slots.resize(options.size);
  std::iota(world.slots.begin(), world.slots.end(), 0);
  engine_->add_group(world);
  try {
    switch (terms.entrance) {
      case JobTerms::Entrance::found:
        control_->found(*this, transport_->contact());
        break;
      case JobTerms::Entrance::join:
        control_->join(*this, transport_->contact());
        break;
      case JobTerms::Entrance::alone:
        control_->found_alone(*this, transport_->contact());
        break;
    }
  } catch (...) {
    close();
    throw;
  }
  recovery_->begin(options.rank);
}

void Job::State::leave(std::chrono::nanoseconds timeout, const char* when) {
  const auto why = std::make_exception_ptr(Cancelled(when));
  const Instant start = engine_->now();
  const auto farewell = engine_->begin_to_leave(why);
  if (!farewell->done()) {
    control_->drain();
    progress_thread_->wait(*farewell, start + timeout);
  }
  const std::optional<Slot> late = farewell->done() ? std::nullopt : engine_->unreceived_by();
  engine_->cancel(why);
  control_->leave();
  if (!late) return;
  throw PeerTimeout({.rank = *late,
                     .phase = "leave: receipt of the messages sent to it",
                     .waited_s = std::chrono::duration<double>(engine_->now() - start).count()});
}

void Job::State::close() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
  }
  try {
    if (progress_thread_ && !engine_->ended()) leave(farewell_max, "the end of the job");
  } catch (const std::exception&) {
    // This rank leaves all the same. Callers that need to know call `leave`.
  }
  engine_->cancel(std::make_exception_ptr(Cancelled("the end of the job")));
  control_->stop();
  progress_thread_->stop();
  engine_->announce();
  refused_by_wire_ = transport_->refused();
  engine_->close();
  transport_.reset();
}

void Job::State::await(Recovery::Call& call, std::optional<std::chrono::nanoseconds> timeout) {
  const std::chrono::nanoseconds most = timeout.value_or(options.timeout);
  const Instant start = engine_->now();
  for (;;) {
    if (const std::exception_ptr ended = engine_->ended()) std::rethrow_exception(ended);
    if (call.advance()) return;
    const Instant waited = engine_->now() - start;
    if (waited > most) {
      if (const auto quorum = engine_->missing_quorum()) {
        throw QuorumLost(quorum->answering, quorum->needed);
      }
      WaitFacts facts = call.missing();
      facts.waited_s = std::chrono::duration<double>(waited).count();
      throw PeerTimeout(facts);
    }
    progress_thread_->wait_for_news(most - waited);
  }
}

bool Job::State::await_verdict_on_gone(std::chrono::steady_clock::time_point until) {
  constexpr std::chrono::milliseconds kLookAgain{20}, kAskAgain{1000};
  std::chrono::steady_clock::time_point ask_again{};
  control::Epoch asked_in = 0;
  for (bool were = false;; were = true) {
    const control::Epoch epoch = ranks_.epoch();
    const std::vector<control::Member> gone = ranks_.gone_members();
    if (gone.empty() && epoch == engine_->view().epoch) return were;
    check_ended();
    const auto now = std::chrono::steady_clock::now();
    if (epoch != asked_in || now >= ask_again) {
      for (const control::Member& member : gone) control_->abandon(member, epoch);
      asked_in = epoch;
      ask_again = now + kAskAgain;
    }
    if (now > until) {
      if (const auto quorum = engine_->missing_quorum())
        throw QuorumLost(quorum->answering, quorum->needed);
      throw PeerTimeout({.rank = gone.empty() ? options.rank : gone.front().slot,
                         .phase = "recover: agree to go on without it"});
    }
    progress_thread_->wait_for_news(kLookAgain);
  }
}

void Job::State::note_recovery() {
  recoveries_.epoch.store(engine_->view().epoch, std::memory_order_relaxed);
  recoveries_.calls.fetch_add(1, std::memory_order_release);
}

void Job::State::check_ended() const {
  if (const std::exception_ptr ended = engine_->ended()) std::rethrow_exception(ended);
}

void Job::State::share_witness(Bootstrap& bootstrap, TimePoint until) {
  if (!control_->is_witness_elsewhere()) return;
  const auto holders =
      gather(bootstrap, uint32_t{witness_memory_ ? 1u : 0u}, "membership: witness", until);
  // Newcomers get the one that the others use.
  const auto first = std::ranges::find(holders, 1u);
  const auto is_held = [&](uint32_t rank) { return holders[rank] != 0; };
  std::vector<uint32_t> present;
  for (uint32_t rank = 0; rank < bootstrap.size(); ++rank) {
    if (bootstrap.present(rank)) present.push_back(rank);
  }
  if (std::ranges::all_of(present, is_held)) return;
  FileDescriptor made;
  collective_step(bootstrap, "membership: memory", until, [&] {
    if (!witness_memory_) made = control::SharedRegister::make(ranks_.slots());
  });
  const FileDescriptor& own = witness_memory_ ? witness_memory_ : made;
  auto memories = exchange_fds(bootstrap, own.native(), "membership: register", until);
  collective_step(bootstrap, "membership: register", until, [&] {
    if (witness_memory_) return;
    const auto source = first == holders.end() ? present.front() : first - holders.begin();
    FileDescriptor memory = std::move(memories[static_cast<size_t>(source)]);
    control_->use_witness(std::make_shared<control::SharedRegister>(memory));
    witness_memory_ = std::move(memory);
  });
}

std::shared_ptr<void> Job::State::on_change(std::function<void()> call) {
  const auto listener = std::make_shared<std::function<void()>>(std::move(call));
  const View view = engine_->view();
  progress_thread_->start();
  const std::lock_guard lock(mutex_);
  // The caller can see this one; the next one is news.
  if (epoch_published_ == 0) epoch_published_ = view.epoch;
  std::erase_if(listeners_, [](const auto& old) { return old.expired(); });
  listeners_.push_back(listener);
  return listener;
}

void Job::State::admit_replacements(const View& view) {
  std::vector<Slot> missing;
  for (Slot slot = 0; slot < view.slots; ++slot) {
    if (!view.at(slot)) missing.push_back(slot);
  }
  if (!missing.empty()) control_->admit(missing, view.epoch);
}

void Job::State::publish_changes() {
  progress_thread_->set_crowded(engine_->neighbours() > std::thread::hardware_concurrency());
  const View view = engine_->view();
  const control::Epoch epoch = view.epoch;
  std::vector<std::shared_ptr<std::function<void()>>> listeners;
  {
    const std::lock_guard lock(mutex_);
    const bool first = epoch_published_ == 0;
    if (std::exchange(epoch_published_, epoch) == epoch || first) return;
    for (const auto& listener : listeners_) {
      if (auto call = listener.lock()) listeners.push_back(std::move(call));
    }
  }
  if (options.on_failure == OnFailure::retry) admit_replacements(view);
  for (const auto& call : listeners) (*call)();
}

uint64_t Job::State::refused() const {
  const std::lock_guard lock(mutex_);  // Another thread may close the job.
  return control_->counters().links_refused + (closed_ ? refused_by_wire_ : transport_->refused());
}

JobMetrics Job::State::metrics() const {
  const uint64_t refused = this->refused();
  const std::vector<control::Member> waiting = control_->waiting();
  const control::ControlCounters counted = control_->counters();
  const std::lock_guard lock(mutex_);
  JobMetrics metrics = {.epoch = view_.epoch,
                        .slots = view_.slots,
                        .joined = counted.joined,
                        .lost = counted.lost,
                        .left = counted.left,
                        .epochs = counted.epochs,
                        .excused = counted.excused,
                        .stalls = counted.stalls,
                        .heartbeats_late = counted.heartbeats_late,
                        .quorums_missed = counted.quorums_missed,
                        .links_made = counted.links_made,
                        .links_lost = counted.links_lost,
                        .refused = refused};
  for (const control::Member& member : view_.members) metrics.active.push_back(member.slot);
  for (const control::Member& member : waiting) {
    if (metrics.waiting.empty() || metrics.waiting.back() != member.slot)
      metrics.waiting.push_back(member.slot);
  }
  return metrics;
}

void Job::State::count(const control::Verdict& verdict) {
  const std::lock_guard lock(mutex_);
  view_ = verdict.next;
}

// Calls of the control plane
// -------------------------------------------------------------------------------

std::vector<control::GroupProgress> Job::State::freeze(control::Epoch epoch) {
  return engine_->freeze(epoch);
}

void Job::State::install(const control::Verdict& verdict, const control::Contacts& contacts) {
  count(verdict);
  // Before the engine: its view is the one that callers learn of, and a world that they make then
  // must have no older members.
  ranks_.install(verdict);
  engine_->install(verdict, contacts);
}

void Job::State::fenced(control::Epoch epoch, const std::string& why) {
  engine_->fenced(epoch, why);
}

void Job::State::attend() {
  progress_thread_->start();
  engine_->attend();
}

void Job::State::quorum_missing(const std::vector<control::Slot>& answering, uint32_t needed) {
  engine_->quorum_missing(answering, needed);
  ranks_.quorum_missing(answering, needed);
}

}  // namespace tokenyard
