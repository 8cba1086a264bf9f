#include "expert_parallel/low_latency/host/call_context.hpp"
#include "expert_parallel/low_latency/host/members.hpp"
#include "fabric/network/network.hpp"
#include "fabric/world_access.hpp"

#include <algorithm>
#include <exception>

#include "tokenyard/error.hpp"

namespace tokenyard::low_latency {

namespace {

MapSet map_of(const std::optional<CallContext::Legacy>& before, const ExpertMap& experts,
              const Setup& setup) {
  MapSet set;
  if (before)
    set = {before->experts.carried_to(setup.places(), setup.world.size()),
           before->experts.version()};
  if (set.map.empty()) set.map = experts.given();
  return set;
}

}  // namespace

CallContext::CallContext(World& world, const LowLatencyOptions& options,
                         const std::optional<Legacy>& before)
    : setup(world, options),
      windows(setup),
      epochs(setup),
      findings(setup),
      masks(setup.accelerator, abort_flag_of(world), world.size()),
      streams(setup),
      batches(setup),
      experts(world, options.experts, setup.places()),
      left_out_(setup.accelerator, world.size() * sizeof(uint32_t), DeviceMemory::Kind::device) {
  if (recoveries_of(world) != nullptr) log.emplace(world.rank());
  const std::optional<uint32_t> last = before ? std::optional(before->last_epoch) : Members::kNone;
  const Members members = Members::gather(world, last, map_of(before, experts, setup));
  joined = members.joined;
  // Nothing that this slot's rank of before has posted lands once others give memory back.
  if (std::ranges::count(joined, world.rank()) != 0) drain_messages(false);
  const Workspace begun = Epochs::counting_from(members.epoch);
  epochs.write(begun, streams);
  // Before the first call on every member alike; filling the windows waits for this stream.
  for (uint32_t rank = 0; rank < world.size(); ++rank)
    if (!is_present(world, rank)) masks.leave_absent(rank, Stream{});
  windows.fill(streams, {members.epoch, members.epoch});
  if (setup.paths.most_put_peers() != 0) put_peers.emplace(setup, streams, members.epoch);
  windows.exchange(streams, put_peers ? &*put_peers : nullptr);
  experts.set(members.map.map);
  experts.follow(members.map.version);
  experts.set_living(members.living);
}

CallContext::~CallContext() {
  try {
    // A running kernel may still use the memory freed below.
    if (!closed) streams.await_last_call();
  } catch (const std::exception&) {
    // A destructor cannot report it.
  }
}

const uint32_t* CallContext::left_out(const LowLatencyCall& call) {
  if (std::ranges::count(call.active, false) == 0) return nullptr;
  auto* const words = left_out_.as<uint32_t>();
  streams.last.begin_call(call.stream);
  setup.accelerator.fill(words, 0, setup.world.size() * sizeof(uint32_t), call.stream);
  for (uint32_t rank = 0; rank < call.active.size(); ++rank)
    if (!call.active[rank]) setup.accelerator.fill(words + rank, 1, 1, call.stream);
  return words;
}

CallParams CallContext::params(const LowLatencyCall& call) {
  const uint32_t timeout = streams.timeout_of(call);
  return {.rank = setup.world.rank(),
          .ranks = setup.world.size(),
          .part = Part::both,
          .send_blocks = 0,
          .whole_gpu = false,
          .left_out = left_out(call),
          .staging_blocks = 0,
          .windows = windows.windows(),
          .masks = masks.masks(),
          .workspace = epochs.workspace(),
          .timeout = timeout,
          .polls_per_check = setup.plan.polls_per_check,
          .span_ns = call.span_ns.as<uint64_t>()};
}

void CallContext::require_open() const {
  if (closed) throw InvalidArgument("exchange", "an open LowLatency", "a closed one");
}

void CallContext::require_calls() const {
  require_open();
  abort_flag_of(setup.world).check_ended("low latency");
  if (const Network* const network = network_of(setup.world)) network->check_works("low latency");
}

void CallContext::check() {
  require_calls();
  if (log) masks.log_changes(*log, membership_epoch_of(setup.world));
  findings.raise(masks);
}

void CallContext::wait(Stream stream) {
  streams.await(stream, "the end of a stream's work");
  streams.last.forget(stream);
  check();
}

void CallContext::drain_messages(bool despite_masks) const {
  if (setup.paths.most_put_peers() == 0) return;
  const auto timeout = setup.world.timeout();
  if (network_of(setup.world)->drain(setup.accelerator.now() + timeout)) return;
  if (despite_masks && !masks.list().empty()) return;
  throw PeerTimeout({.rank = setup.world.rank(),
                     .phase = "LowLatency: the network's last requests",
                     .waited_s = std::chrono::duration<double>(timeout).count()});
}

/// The barrier follows every rank's last kernel, so no store of this object is in flight after it.
/// A rank that misses the barrier may still store here, so the window is kept; the error is raised
/// only if that rank is not masked. In a world of before, ranks may have gone on: none is waited
/// for, and the window is kept.
void CallContext::close(bool of_before) {
  if (closed) return;
  streams.await_last_call();
  batches.end();
  closed = true;
  if (of_before) return;
  try {
    // Messages and credits of this rank land before the barrier, so that nothing does after it.
    // Nor does a masked rank come to the barrier.
    drain_messages(true);
    setup.world.barrier("LowLatency: close");
    windows.give_back();
    if (put_peers) put_peers->give_back();
  } catch (const PeerLost& error) {
    if (!masks.masked(error.facts.rank)) throw;
  } catch (const PeerTimeout& error) {
    if (!masks.masked(error.facts.rank)) throw;
  }
}

}  // namespace tokenyard::low_latency
