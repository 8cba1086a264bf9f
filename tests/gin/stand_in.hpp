/// A driver of GIN without NCCL, for ranks that are threads of one process: see
/// stand_in_kernel.hpp.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/device_memory.hpp"
#include "fabric/gather.hpp"
#include "fabric/network/simulated_network.hpp"
#include "gin/gin_driver.hpp"
#include "gin/gin_network.hpp"
#include "gin/stand_in_kernel.hpp"
#include "simt/host_accelerator.hpp"

namespace tokenyard::gin::testing {

/// Which ranks lose all that they send to each other.
class Cuts {
 public:
  static constexpr uint32_t kRanks = 8;
  void cut(uint32_t one, uint32_t other) {
    words_[one][other] = 1;
    words_[other][one] = 1;
  }
  /// Returns [ranks] words of a rank.
  const uint32_t* of(uint32_t rank) const {
    return reinterpret_cast<const uint32_t*>(words_[rank].data());
  }

 private:
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  std::array<std::array<std::atomic<uint32_t>, kRanks>, kRanks> words_{};
};

struct StandInOptions {
  bool keeps = true;                      ///< the card runs until it is stopped, beside the wire
  uint32_t runs = UINT32_MAX;             ///< after which a card that is not kept fails
  std::optional<uint32_t> fails_on = {};  ///< the only rank whose card fails; unset: all
  std::chrono::nanoseconds pause{0};      ///< before a run of a card that is not kept
  bool slow_flush = false;  ///< a flush takes longer than a look, the first ones longer than a run
  std::shared_ptr<Cuts> cuts = {};
  std::function<uint32_t(uint32_t rank)> version = [](uint32_t) { return 0; };
  /// Told which strides ranks were connected with.
  std::function<void(const CommunicatorPlace&)> on_join = [](const CommunicatorPlace&) {};
};

class StandInCommunicator final : public GinCommunicator {
 public:
  StandInCommunicator(const NetworkPlace& place, SimulatedCard card, const StandInOptions& options,
                      uint32_t queues_per_peer, TimePoint until)
      : run_(card.run),
        keeps_(options.keeps),
        runs_(options.fails_on.value_or(place.bootstrap.rank()) == place.bootstrap.rank()
                  ? options.runs
                  : UINT32_MAX),
        pause_(options.pause),
        slow_flush_(options.slow_flush),
        cuts_(options.cuts),
        rank_(place.bootstrap.rank()) {
    Bootstrap& bootstrap = place.bootstrap;
    std::vector<std::byte*> arenas;
    const auto mine = reinterpret_cast<uint64_t>(place.arena.base());
    for (const uint64_t base : gather(bootstrap, mine, "arenas", until))
      arenas.push_back(reinterpret_cast<std::byte*>(base));
    arenas_ = std::make_unique<DeviceMemory>(
        bootstrap.accelerator(), arenas.size() * sizeof(std::byte*), DeviceMemory::Kind::shared);
    for (uint32_t rank = 0; rank < arenas.size(); ++rank) {
      arenas_->as<std::byte*>()[rank] = arenas[rank];
      if (!place.far[rank]) arenas[rank] = nullptr;
    }
    card.queues_per_peer = 2 * queues_per_peer;
    wire_ =
        std::make_unique<SimulatedNetwork>(SimulatedNetwork::Place{.bootstrap = bootstrap,
                                                                   .abort_flag = place.abort_flag,
                                                                   .arena = place.arena,
                                                                   .far_arenas = arenas,
                                                                   .timeout = place.timeout},
                                           card, until);
  }

  bool join() override { return true; }
  std::string way() const override { return "a stand-in for NCCL"; }
  void run(const LaunchShape& shape, const CardParams& params) override {
    if (runs_-- == 0) throw InternalError("the card is worn out");
    std::this_thread::sleep_for(pause_);
    simt::HostAccelerator card([] {});
    launch(card, stand_in_card_kernel, shape, Stream{}, with_wire(params));
  }
  std::unique_ptr<Aside> start(const LaunchShape& shape, const CardParams& params) override {
    if (!keeps_) return nullptr;
    const StandInParams mine = with_wire(params);
    return run_(stand_in_card_kernel.entry, shape, &mine);
  }
  std::string error() override { return {}; }

 private:
  StandInParams with_wire(const CardParams& params) const {
    return {.card = params,
            .wire = wire_->queues(),
            .arenas = arenas_->as<std::byte*>(),
            .slow_flush = slow_flush_,
            .cut = cuts_ ? cuts_->of(rank_) : nullptr};
  }

  const RunAside run_;
  const bool keeps_;
  uint32_t runs_;
  const std::chrono::nanoseconds pause_;
  const bool slow_flush_;
  const std::shared_ptr<Cuts> cuts_;
  const uint32_t rank_;
  std::unique_ptr<DeviceMemory> arenas_;
  std::unique_ptr<SimulatedNetwork> wire_;
};

/// A rank's. It lives as long as the network that it is for is made.
class StandInDriver final : public GinDriver {
 public:
  StandInDriver(const NetworkPlace& place, SimulatedCard card, StandInOptions options,
                TimePoint until)
      : place_(place), card_(std::move(card)), options_(std::move(options)), until_(until) {}

  void check(const Accelerator&) override {}
  uint32_t version() const override { return options_.version(place_.bootstrap.rank()); }
  CommunicatorId make_id() override { return {}; }
  std::unique_ptr<GinCommunicator> communicator(const CommunicatorPlace& mine) override {
    options_.on_join(mine);
    return std::make_unique<StandInCommunicator>(place_, card_, options_, mine.queues_per_peer,
                                                 until_);
  }

 private:
  const NetworkPlace& place_;
  const SimulatedCard card_;
  const StandInOptions options_;
  const TimePoint until_;
};

/// Returns what makes networks over the stand-in, whose wire `card` runs.
inline MakeNetwork over_stand_in(const SimulatedCard& card, const StandInOptions& stand_in,
                                 const GinOptions& options = {}) {
  return [=](const NetworkPlace& place, TimePoint until) {
    GinOptions mine = options;
    mine.driver = std::make_shared<StandInDriver>(place, card, stand_in, until);
    return std::make_shared<GinNetwork>(place, mine, until);
  };
}

}  // namespace tokenyard::gin::testing
