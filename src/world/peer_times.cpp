/// The doctor's measurement of a world's network. In each round every rank has at most one partner,
/// as in a tournament in which all play all.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "device/await_stream.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/gather.hpp"
#include "fabric/network/claimed_queues.hpp"
#include "fabric/network/network.hpp"
#include "fabric/network/network_memory.hpp"
#include "fabric/network/probe.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/doctor.hpp"
#include "tokenyard/world.hpp"
#include "world/parts.hpp"

namespace tokenyard {

namespace {

/// Returns whom a rank plays in a round of `ranks` - 1, or of `ranks` if their number is odd: then
/// one rank pauses. The last player stays where it is, and the others turn around it.
std::optional<uint32_t> partner_of(uint32_t rank, uint32_t round, uint32_t ranks) {
  const uint32_t turning = ranks - 1 + ranks % 2;
  uint32_t partner = turning;
  if (rank == turning) {
    partner = (round % 2 == 0 ? round : round + turning) / 2;
  } else if (const uint32_t other = (round + turning - rank) % turning; other != rank) {
    partner = other;
  }
  if (partner >= ranks) return std::nullopt;
  return partner;
}

constexpr const char* kNotYet = "not measured";
constexpr const char* kLargeOnes =
    " (puts of 8 bytes arrived, those of 1 MiB did not: does a part of the way have a smaller MTU "
    "than "
    "the interfaces? ping -M do -s SIZE shows which sizes pass)";

class PeerTimer {
 public:
  PeerTimer(World& world, std::chrono::nanoseconds timeout)
      : world_(world),
        accelerator_(accelerator_of(world)),
        network_(*network_of(world)),
        timeout_(std::min(timeout, world.timeout())),
        words_bytes_((world.size() * sizeof(uint64_t) + 63) / 64 * 64),
        queue_(network_),
        result_(accelerator_, sizeof(ProbeResult), DeviceMemory::Kind::shared) {
    for (uint32_t rank = 0; rank < world.size(); ++rank) {
      if (network_.reaches(rank))
        times_.push_back({.rank = rank, .how = world.topology().peers[rank].how, .error = kNotYet});
    }
    make_memory();
  }

  std::vector<PeerTimes> run() {
    const uint32_t ranks = world_.size();
    for (uint32_t round = 0; round < ranks - 1 + ranks % 2; ++round) {
      PeerTimes* const times = times_of(partner_of(world_.rank(), round, ranks));
      if (!exchange(times, play(times))) break;
    }
    // Nobody writes here any more, unless a wait has failed.
    if (std::ranges::all_of(times_, [](const PeerTimes& each) { return each.error.empty(); }))
      memory_->give_back();
    return std::move(times_);
  }

 private:
  struct Introduction {
    NetworkTarget place;
    uint64_t state;  ///< 0: ready; 1: no memory; 2: no queue
  };

  void make_memory() {
    std::string why;
    try {
      memory_.emplace(world_, words_bytes_ + 2 * size_t{kProbePutBytes});
      accelerator_.fill(memory_->data(), 0, memory_->bytes(), Stream{});
      finish(world_.timeout());
    } catch (const InvalidArgument& error) {
      why = error.what();
    }
    if (memory_) memory_->make_known();
    places_ = gather(world_,
                     Introduction{.place = memory_ ? memory_->target() : NetworkTarget{},
                                  .state = !memory_          ? uint64_t{1}
                                           : !queue_.exist() ? uint64_t{2}
                                                             : uint64_t{0}},
                     "doctor: memory of puts");
    for (const uint32_t rank : present_ranks(world_)) {
      if (places_[rank].state == 0) continue;
      if (memory_) memory_->give_back();  // All ranks refuse alike, so nobody writes.
      throw Unsupported(
          "doctor", places_[rank].state == 1
                        ? fmt::format("rank {} has no {} bytes of its arena left for puts", rank,
                                      words_bytes_ + 2 * size_t{kProbePutBytes})
                        : too_few_queues(network_, 1, rank));
    }
    states_.resize(world_.size());
  }

  void finish(std::chrono::nanoseconds timeout) {
    await_stream(accelerator_, world_.rank(), Stream{}, timeout, "doctor: a kernel");
  }

  PeerTimes* times_of(std::optional<uint32_t> rank) {
    if (!rank) return nullptr;
    const auto at = std::ranges::find(times_, *rank, &PeerTimes::rank);
    return at == times_.end() ? nullptr : &*at;
  }

  /// Measures with this round's partner. Ranks that share a device launch together, so one without
  /// a partner launches, too. Returns what a pair's first rank has measured for both.
  double play(PeerTimes* times) {
    const bool plays = times != nullptr && !states_[times->rank].failed && !own().failed;
    if (times != nullptr && !plays) {
      const uint32_t broken = own().failed ? world_.rank() : times->rank;
      times->error = fmt::format("not measured, since the network of rank {} has failed", broken);
    }
    const ErrorRecord record(accelerator_, abort_flag_of(world_));
    result_.as<ProbeResult>()->turns = 0;
    try {
      launch(accelerator_, probe_kernel, {.blocks = 1, .warps = 1}, Stream{},
             params_of(record, plays ? times->rank : world_.rank()));
      finish(timeout_ * 2 + std::chrono::seconds(30));
      record.check(kProbePhases);
      return plays ? measure(*times) : 0;
    } catch (const NetworkFault& error) {
      own().failed = 1;  // It stays with the network.
      if (plays) times->error = error.what();
    } catch (const PeerTimeout& error) {
      if (plays) times->error = error.what();
    } catch (const PeerLost& error) {
      if (plays) times->error = error.what();
    }
    if (plays && result_.as<ProbeResult>()->turns == kProbeTurns) times->error += kLargeOnes;
    return 0;
  }

  ProbeParams params_of(const ErrorRecord& record, uint32_t peer) const {
    const NetworkTarget theirs = places_[peer].place;
    return {.wait_context = record.wait_context(timeout_),
            .queues = network_.queues(),
            .rank = world_.rank(),
            .peer = peer,
            .queue = queue_.number(),
            .room = theirs + words_bytes_,
            .word = theirs + world_.rank() * sizeof(uint64_t),
            .source = {.key = memory_->target().key,
                       .bytes = kProbePutBytes,
                       .from = memory_->data() + words_bytes_ + kProbePutBytes},
            .arrived = reinterpret_cast<const uint64_t*>(memory_->data()) + peer,
            .result = result_.as<ProbeResult>()};
  }

  /// Returns the time of a round trip; 0 on the rank that does not begin.
  double measure(PeerTimes& times) const {
    ProbeResult& result = *result_.as<ProbeResult>();
    times.bytes_per_second = static_cast<double>(result.puts * kProbePutBytes) * 1e9 /
                             static_cast<double>(std::max<uint64_t>(result.puts_ns, 1));
    times.error.clear();
    if (world_.rank() > times.rank) return 0;
    const std::span<uint64_t> turns(result.turn_ns);
    std::ranges::sort(turns);
    return static_cast<double>(turns[turns.size() / 2]) * 1e-3;
  }

  /// Tells all ranks what this one has measured and whether its network has failed. Returns false
  /// if they cannot be told.
  bool exchange(PeerTimes* times, double round_trip_us) {
    own().round_trip_us = round_trip_us;
    // One rank's wait in this round may have failed at once, and its partner's at the deadline.
    const TimePoint until =
        accelerator_.now() + world_.timeout() + timeout_ * 2 + std::chrono::seconds(30);
    try {
      states_ = gather(*WorldAccess::impl(world_).bootstrap, State(own()), "doctor: times of peers",
                       until);
    } catch (const Cancelled&) {
      throw;
    } catch (const Error& error) {
      for (PeerTimes& each : times_)
        if (each.error == kNotYet) each.error = fmt::format("not measured: {}", error.what());
      return false;
    }
    if (times != nullptr && times->error.empty())
      times->round_trip_us = std::max(round_trip_us, states_[times->rank].round_trip_us);
    return true;
  }

  /// The words of a rank to all others after a round.
  struct State {
    uint64_t failed = 0;  ///< whether its network has
    double round_trip_us = 0;
  };
  State& own() { return states_[world_.rank()]; }

  World& world_;
  Accelerator& accelerator_;
  Network& network_;
  const std::chrono::nanoseconds timeout_;
  const size_t words_bytes_;
  const ClaimedQueues queue_;
  DeviceMemory result_;
  std::optional<NetworkMemory> memory_;
  std::vector<Introduction> places_;  ///< [ranks]
  std::vector<State> states_;         ///< [ranks]
  std::vector<PeerTimes> times_;
};

}  // namespace

std::vector<PeerTimes> time_peers(World& world, std::chrono::nanoseconds timeout) {
  if (timeout <= std::chrono::nanoseconds::zero())
    throw InvalidArgument("timeout", "more than 0", fmt::format("{} ns", timeout.count()));
  // All ranks have a network, or none has.
  return network_of(world) == nullptr ? std::vector<PeerTimes>() : PeerTimer(world, timeout).run();
}

}  // namespace tokenyard
