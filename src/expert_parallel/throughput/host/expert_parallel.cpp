#include "tokenyard/expert_parallel.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/trace_range.hpp"
#include "expert_parallel/throughput/host/session.hpp"
#include "fabric/sessions.hpp"

namespace tokenyard {

using throughput::Session;

struct ExpertParallel::Impl {
  Impl(World& world, const ExpertParallelOptions& options)
      : options(options), sessions(world, make) {}

  /// Returns the session of a collective call that needs nothing of the calls before.
  /// `stream`: that of the call.
  Session& for_call(std::optional<Stream> stream) {
    const auto change = [this](const Session& before, const Session& now) {
      if (traces) sessions.last().context.observation.trace_calls(true);
      undone = now.undone(before);  // First: the hook is the caller's, and may throw.
      call_hook(before.experts.held_by(before.world->rank()),
                now.experts.held_by(now.world->rank()));
    };
    Session& session = sessions.for_call(stream, make, change);
    if (undone) throw *std::exchange(undone, std::nullopt);
    return session;
  }
  /// Makes a collective call that needs nothing of the calls before, and makes it again after a
  /// failure if the job's OnFailure says so. Where other ranks have finished an earlier call than
  /// this one, `for_call` throws instead.
  template <class Call>
  auto run(Stream stream, Call call) {
    for (;;) {
      try {
        return call(for_call(stream));
      } catch (const PeerLost& error) {
        if (!continue_job_after(sessions.world(), error.facts.rank, false)) throw;
      } catch (const PeerTimeout& error) {
        if (!continue_job_after(sessions.world(), error.facts.rank, true)) throw;
      } catch (const NetworkFault& error) {
        // A host that is cut off may be noticed by the network before the job knows.
        const bool of_peer =
            error.facts.check == "connection" ||
            (error.facts.check == "thread" && error.facts.peer != error.facts.rank);
        if (!of_peer || !continue_job_after(sessions.world(), error.facts.peer, true)) throw;
      }
    }
  }
  /// Returns the session of a call on a route, which may be one of before.
  Session& on_route(const Route& route) {
    if (!sessions.must_go_on()) {
      sessions.last().context.check_route(route);
      return sessions.last();
    }
    throw InvalidArgument(
        "route", "one of a dispatch since the ranks have changed: dispatch again",
        fmt::format("one of epoch {}", membership_epoch_of(*sessions.last().world)));
  }
  void call_hook(const std::vector<int32_t>& before, const std::vector<int32_t>& now) const {
    if (hook && now != before) hook(now);
  }
  void check() const {
    for (const auto& session : sessions.captured())
      if (session->take_replay())
        throw InvalidArgument(
            "graph", "a CUDA graph that was captured since the ranks have changed: capture it anew",
            fmt::format("the replay of one of epoch {}", membership_epoch_of(*session->world)));
    sessions.now()->failures.check();
  }
  const ExpertParallelOptions options;
  const std::shared_ptr<const void> identity = std::make_shared<char>();
  std::function<void(const std::vector<int32_t>& held)> hook;
  bool traces = false;
  std::optional<OperationAborted> undone;  ///< is still to be thrown
  const std::function<std::shared_ptr<Session>(std::shared_ptr<World>, const Session*)> make =
      [this](std::shared_ptr<World> world, const Session* before) {
        return std::make_shared<Session>(std::move(world), options, identity, before);
      };
  Sessions<Session> sessions;
};

ExpertParallel::ExpertParallel(World& world, const ExpertParallelOptions& options)
    : impl_(std::make_unique<Impl>(world, options)) {}
ExpertParallel::~ExpertParallel() = default;

Received ExpertParallel::dispatch(const DispatchInput& input, Stream stream) {
  const TraceRange range("ExpertParallel.dispatch");
  return impl_->run(stream, [&](Session& session) {
    impl_->sessions.require_not_gone("x", input.x.data);
    return session.dispatcher.dispatch(input, stream);
  });
}

Received ExpertParallel::dispatch(const DispatchInput& input, const Route& route, Stream stream) {
  const TraceRange range("ExpertParallel.dispatch");
  Session& session = impl_->on_route(route);
  impl_->sessions.require_not_gone("x", input.x.data);
  return session.dispatcher.dispatch_again(input, route, stream);
}

void ExpertParallel::combine(const CombineInput& input, const Route& route,
                             const CombineOutput& output, Stream stream) {
  const TraceRange range("ExpertParallel.combine");
  Session& session = impl_->on_route(route);
  impl_->sessions.require_not_gone("y", input.y.data);
  session.combiner.combine(input, route, output, stream);
}

CombineBuffer ExpertParallel::combine_buffer(const Route& route, DataType type, Stream stream) {
  return impl_->on_route(route).combiner.buffer(route, type, stream);
}

ExpertRows ExpertParallel::group_by_expert(const Received& received,
                                           const GroupByExpertOptions& options, Stream stream) {
  const TraceRange range("ExpertParallel.group_by_expert");
  Session& session = received.route ? impl_->on_route(*received.route) : impl_->sessions.last();
  return session.grouper.group_by_expert(received, options, stream);
}

RowsByExpert ExpertParallel::dispatch_by_expert(const DispatchInput& input,
                                                const GroupByExpertOptions& options,
                                                Stream stream) {
  const TraceRange range("ExpertParallel.dispatch_by_expert");
  return impl_->run(stream, [&](Session& session) {
    impl_->sessions.require_not_gone("x", input.x.data);
    return session.grouper.dispatch_by_expert(input, options, stream);
  });
}

void ExpertParallel::set_expert_map(std::span<const int32_t> expert_at) {
  const TraceRange range("ExpertParallel.set_expert_map");
  Session& session = impl_->for_call(std::nullopt);
  session.failures.check();
  session.experts.require_agreed(expert_at, "ExpertParallel: expert map");
  session.context.setup.await_stream(session.context.last_stream.get(),
                                     "the end of the call before its experts move");
  session.failures.check();
  const std::vector<int32_t> before = held_experts();
  session.set_experts(expert_at);
  impl_->call_hook(before, held_experts());
}
std::vector<int32_t> ExpertParallel::expert_map() const {
  return impl_->sessions.now()->experts.expert_at();
}
std::vector<int32_t> ExpertParallel::held_experts() const {
  return impl_->sessions.now()->experts.held_by(world().rank());
}
std::vector<uint32_t> ExpertParallel::lost_experts() const {
  return impl_->sessions.now()->experts.lost();
}
void ExpertParallel::on_experts_changed(
    std::function<void(const std::vector<int32_t>& held)> hook) {
  impl_->hook = std::move(hook);
}

ExpertParallel::Load ExpertParallel::load() const {
  return impl_->sessions.now()->load();
}
ExpertParallel::Metrics ExpertParallel::metrics() const {
  return impl_->sessions.now()->metrics();
}
void ExpertParallel::trace_calls(bool on) {
  impl_->traces = on;
  impl_->sessions.last().context.observation.trace_calls(on);
}
std::vector<ExpertParallel::Moment> ExpertParallel::last_trace() const {
  return impl_->sessions.now()->context.observation.last_trace();
}

std::vector<FailedRank> ExpertParallel::failed_ranks() const {
  return impl_->sessions.now()->failures.failed_ranks();
}
void ExpertParallel::check() {
  impl_->check();
}
void ExpertParallel::wait(Stream stream) {
  const TraceRange range("ExpertParallel.wait");
  impl_->sessions.last().context.wait(stream);
  impl_->check();
}

const ExpertParallelOptions& ExpertParallel::options() const {
  return impl_->options;
}
uint32_t ExpertParallel::local_experts() const {
  return impl_->sessions.now()->context.setup.local_experts();
}
uint32_t ExpertParallel::first_expert() const {
  return impl_->sessions.now()->context.setup.partition.first_of(world().rank());
}
ExpertParallel::Rings ExpertParallel::rings() const {
  const auto session = impl_->sessions.now();
  return session->context.rails ? session->context.rails->rings() : Rings{};
}
uint32_t ExpertParallel::sms() const {
  return impl_->sessions.now()->context.setup.plan.blocks;
}
const std::string& ExpertParallel::sms_reason() const {
  return impl_->sessions.last().context.setup.plan.reason;
}
World& ExpertParallel::world() const {
  return impl_->sessions.world();
}

}  // namespace tokenyard
