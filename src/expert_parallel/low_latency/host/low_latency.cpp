#include "tokenyard/low_latency.hpp"

#include <fmt/format.h>

#include "base/trace_range.hpp"
#include "expert_parallel/low_latency/host/options.hpp"
#include "expert_parallel/low_latency/host/session.hpp"
#include "fabric/sessions.hpp"

namespace tokenyard {

using low_latency::Session;

struct LowLatency::Impl {
  Impl(World& world, const LowLatencyOptions& options) : options(options), sessions(world, make) {}

  /// Returns the session of a collective call that needs nothing of the calls before.
  Session& for_call(std::optional<Stream> stream = std::nullopt) {
    if (closed) sessions.last().context.require_open();
    return sessions.for_call(stream, make, [this](const Session& before, const Session& now) {
      call_hook(before.context.experts.held_by(before.world->rank()),
                now.context.experts.held_by(now.world->rank()));
    });
  }
  /// Returns the session of a call on a batch, which may be one of before.
  Session& on_batch() {
    if (closed || !sessions.must_go_on()) return sessions.last();
    throw InvalidArgument(
        "handle", "a batch of a dispatch since the ranks have changed: dispatch again",
        fmt::format("one of epoch {}", membership_epoch_of(*sessions.last().world)));
  }
  void call_hook(const std::vector<int32_t>& before, const std::vector<int32_t>& now) const {
    if (hook && now != before) hook(now);
  }
  /// Makes a change, then calls the hook if this rank holds other experts.
  template <class Change>
  void change_experts(Session& session, Change change) const {
    const ExpertMap& experts = session.context.experts;
    const std::vector<int32_t> before = experts.held_by(session.world->rank());
    change();
    call_hook(before, experts.held_by(session.world->rank()));
  }
  void check_replays() const {
    for (const auto& session : sessions.captured())
      if (session->take_replay())
        throw InvalidArgument(
            "graph", "a CUDA graph that was captured since the ranks have changed: capture it anew",
            fmt::format("the replay of one of epoch {}", membership_epoch_of(*session->world)));
  }

  const LowLatencyOptions options;
  std::function<void(const std::vector<int32_t>& held)> hook;
  bool closed = false;
  const std::function<std::shared_ptr<Session>(std::shared_ptr<World>, const Session*)> make =
      [this](std::shared_ptr<World> world, const Session* before) {
        return std::make_shared<Session>(std::move(world), options, before);
      };
  Sessions<Session> sessions;
};

LowLatency::LowLatency(World& world, const LowLatencyOptions& options)
    : impl_(std::make_unique<Impl>(world, options)) {}
LowLatency::~LowLatency() = default;

LowLatencyReceived LowLatency::dispatch(const LowLatencyInput& input, const LowLatencyCall& call) {
  const TraceRange range("LowLatency.dispatch");
  Session& session = impl_->for_call(call.stream);
  try {
    LowLatencyReceived received = session.batch_calls.dispatch(input, call);
    received.owner = impl_->sessions.now();
    return received;
  } catch (RefusedBatch& refused) {
    refused.received.owner = impl_->sessions.now();
    throw;
  }
}
void LowLatency::combine(const LowLatencyCombine& what,
                         const std::shared_ptr<LowLatencyHandle>& handle,
                         const LowLatencyCall& call) {
  const TraceRange range("LowLatency.combine");
  impl_->on_batch().batch_calls.combine(what, handle, call);
}
void LowLatency::receive(const std::shared_ptr<LowLatencyHandle>& handle, Stream stream) {
  const TraceRange range("LowLatency.receive");
  impl_->on_batch().batch_calls.receive(handle, stream);
}
TensorView LowLatency::combine_buffer(const std::shared_ptr<LowLatencyHandle>& handle) {
  return impl_->on_batch().context.batches.combine_buffer(handle);
}

std::vector<FailedRank> LowLatency::failed_ranks() const {
  return impl_->sessions.now()->context.masks.list();
}
LowLatency::Metrics LowLatency::metrics() const {
  return impl_->sessions.now()->metrics();
}
void LowLatency::write_mask(TensorView out, Stream stream) {
  const TraceRange range("LowLatency.write_mask");
  impl_->sessions.last().mask_calls.write_mask(out, stream);
}
void LowLatency::update_mask(uint32_t rank, bool masked) {
  const TraceRange range("LowLatency.update_mask");
  impl_->sessions.last().mask_calls.update_mask(rank, masked);
}
void LowLatency::clear_mask() {
  const TraceRange range("LowLatency.clear_mask");
  impl_->sessions.last().mask_calls.clear_mask();
}
uint32_t LowLatency::epoch() {
  return impl_->sessions.last().mask_calls.epoch();
}
void LowLatency::restart(uint32_t epoch) {
  const TraceRange range("LowLatency.restart");
  impl_->sessions.last().mask_calls.restart(epoch);
}

void LowLatency::set_expert_map(std::span<const int32_t> expert_at) {
  const TraceRange range("LowLatency.set_expert_map");
  Session& session = impl_->for_call();
  impl_->change_experts(session, [&] { session.mask_calls.set_expert_map(expert_at); });
}
std::vector<int32_t> LowLatency::expert_map() const {
  return impl_->sessions.now()->context.experts.expert_at();
}
std::vector<int32_t> LowLatency::held_experts() const {
  return impl_->sessions.now()->context.experts.held_by(world().rank());
}
std::vector<uint32_t> LowLatency::lost_experts() const {
  return impl_->sessions.now()->context.experts.lost();
}
void LowLatency::on_experts_changed(std::function<void(const std::vector<int32_t>& held)> hook) {
  impl_->hook = std::move(hook);
}
void LowLatency::evict(const std::vector<uint32_t>& ranks, std::optional<uint32_t> epoch) {
  const TraceRange range("LowLatency.evict");
  Session& session = impl_->sessions.last();
  impl_->change_experts(session, [&] { session.mask_calls.evict(ranks, epoch); });
}
std::vector<uint32_t> LowLatency::admit() {
  const TraceRange range("LowLatency.admit");
  const Session& before = impl_->sessions.last();
  Session& session = impl_->for_call();
  if (&session != &before) return session.context.joined;
  std::vector<uint32_t> joined;
  impl_->change_experts(session, [&] { joined = session.mask_calls.admit(); });
  return joined;
}

void LowLatency::check() {
  impl_->check_replays();
  impl_->sessions.now()->context.check();
}
void LowLatency::wait(Stream stream) {
  const TraceRange range("LowLatency.wait");
  const std::shared_ptr<Session> session = impl_->sessions.now();
  session->context.wait(stream);
  impl_->check_replays();
}
void LowLatency::close() {
  const TraceRange range("LowLatency.close");
  impl_->sessions.last().context.close(impl_->sessions.must_go_on());
  impl_->closed = true;
}

uint32_t LowLatency::local_experts() const {
  return impl_->sessions.now()->context.setup.local_experts();
}
uint32_t LowLatency::first_expert() const {
  return impl_->sessions.now()->context.setup.first_expert();
}

LowLatency::Memory LowLatency::memory(const LowLatencyOptions& options, uint32_t ranks,
                                      uint32_t put_ranks) {
  low_latency::check_options(options, ranks);
  if (put_ranks >= ranks)
    throw InvalidArgument("put_ranks", fmt::format("fewer than {} ranks", ranks),
                          fmt::format("{}", put_ranks));
  const low_latency::WindowLayout window = low_latency::window_layout(options, ranks);
  const uint64_t messages =
      put_ranks == 0 ? 0 : low_latency::message_layout(options, put_ranks).bytes();
  // Ranks need different amounts; this is enough for each.
  uint64_t mirrors = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank)
    mirrors = std::max<uint64_t>(mirrors, low_latency::Mirrors::of(window, rank, put_ranks).bytes);
  return {.arena_bytes = window.bytes() + mirrors,
          .device_bytes = 2 * low_latency::Batch::bytes(options, ranks) +
                          low_latency::Workspace::bytes(ranks) +
                          ExpertMap::device_bytes(options.experts, places_of(options, ranks)),
          .combine_buffer_bytes = low_latency::Batch::combine_bytes(options, ranks),
          .network_bytes = messages};
}

std::vector<LowLatencyPath> LowLatency::paths() const {
  return impl_->sessions.now()->context.setup.paths.of_ranks();
}

const LowLatencyOptions& LowLatency::options() const {
  return impl_->options;
}
World& LowLatency::world() const {
  return impl_->sessions.world();
}

}  // namespace tokenyard
