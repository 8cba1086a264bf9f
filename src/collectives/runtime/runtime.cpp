#include "collectives/runtime/runtime.hpp"

#include <fmt/format.h>

#include <numeric>
#include <thread>

#include "net/address.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

/// How long the destructor of Collectives waits until others have received its messages.
constexpr std::chrono::nanoseconds farewell_max = std::chrono::seconds(1);

Instant since_start() {
  return std::chrono::duration_cast<Instant>(std::chrono::steady_clock::now().time_since_epoch());
}

control::ControlOptions control_options(const CollectivesOptions& options) {
  control::ControlOptions control;
  control.store = options.store;
  control.host_store = options.host_store;
  control.own_store = options.own_store;
  control.job = options.job;
  control.secret = options.secret;
  control.slot = options.rank;
  control.slots = options.size;
  control.slots_max = std::max(options.size, options.size_max);
  control.address = options.address.empty() ? net::own_address(control::tcp_address(options.store))
                                            : options.address;
  control.timeout = options.timeout;
  control.membership.silence = options.silence;
  control.membership.witness = options.witness;
  control.membership.evict_stalled = options.on_failure == OnFailure::exclude;
  control.interrupt = options.interrupt;
  return control;
}

void check(const CollectivesOptions& options, Entrance entrance) {
  const uint32_t places = std::max(options.size, options.size_max);
  if (options.size == 0) throw InvalidArgument("size", "at least 1", "0");
  if (options.rank >= (entrance == Entrance::join ? places : options.size)) {
    throw InvalidArgument("rank", fmt::format("less than {}", places),
                          fmt::to_string(options.rank));
  }
  if (options.timeout <= std::chrono::nanoseconds(0)) {
    throw InvalidArgument("timeout", "a positive time", "none");
  }
  if (!options.interrupt) throw InvalidArgument("interrupt", "a function", "nothing");
}

}  // namespace

Runtime::Runtime(const CollectivesOptions& options, Entrance entrance) : options(options) {
  check(options, entrance);
  control_ = std::make_unique<control::Control>(control_options(options));
  transport_ =
      std::make_shared<WireTransport>(WireOptions{.self = control_->self(),
                                                  .job = options.job,
                                                  .secret = options.secret,
                                                  .host = options.host,
                                                  .address = control_options(options).address,
                                                  .interconnect = options.interconnect});
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

  GroupIdentity world = {.id = 0, .name = "world", .slots = {}, .self = options.rank};
  world.slots.resize(options.size);
  std::iota(world.slots.begin(), world.slots.end(), 0);
  engine_->add_group(world);
  try {
    switch (entrance) {
      case Entrance::found:
        control_->found(*engine_, transport_->contact());
        break;
      case Entrance::join:
        control_->join(*engine_, transport_->contact());
        break;
      case Entrance::alone:
        control_->found_alone(*engine_, transport_->contact());
        break;
    }
  } catch (...) {
    close();
    throw;
  }
  recovery_->begin(options.rank);
}

void Runtime::leave(std::chrono::nanoseconds timeout, const char* when) {
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

void Runtime::close() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
  }
  try {
    if (progress_thread_ && !engine_->ended()) leave(farewell_max, "the end of these Collectives");
  } catch (const std::exception&) {
    // This rank leaves all the same. Callers that need to know call `leave`.
  }
  engine_->cancel(std::make_exception_ptr(Cancelled("the end of these Collectives")));
  control_->stop();
  progress_thread_->stop();
  engine_->announce();
  refused_by_wire_ = transport_->refused();
  engine_->close();
  transport_.reset();
}

void Runtime::await(Recovery::Call& call, std::optional<std::chrono::nanoseconds> timeout) {
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

std::shared_ptr<void> Runtime::on_change(std::function<void()> call) {
  const auto listener = std::make_shared<std::function<void()>>(std::move(call));
  const std::lock_guard lock(mutex_);
  std::erase_if(listeners_, [](const auto& old) { return old.expired(); });
  listeners_.push_back(listener);
  return listener;
}

void Runtime::admit_replacements(const View& view) {
  std::vector<Slot> missing;
  for (Slot slot = 0; slot < view.slots; ++slot) {
    if (!view.at(slot)) missing.push_back(slot);
  }
  if (!missing.empty()) control_->admit(missing, view.epoch);
}

void Runtime::publish_changes() {
  progress_thread_->set_crowded(engine_->neighbours() > std::thread::hardware_concurrency());
  const View view = engine_->view();
  const Epoch epoch = view.epoch;
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

CollectivesCounters Runtime::counters() const {
  CollectivesCounters counters = engine_->counters();
  const std::lock_guard lock(mutex_);
  counters.refused = control_->refused() + (closed_ ? refused_by_wire_ : transport_->refused());
  return counters;
}

}  // namespace tokenyard::collectives
