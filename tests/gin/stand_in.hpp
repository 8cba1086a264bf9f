/// A driver of GIN without NCCL, for ranks that are threads of one process: see
/// stand_in_kernel.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
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

class StandInCommunicator final : public GinCommunicator {
 public:
  /// `keeps`: the card runs until it is stopped, beside the wire; `runs`: how often it can be run.
  StandInCommunicator(const NetworkPlace& place, SimulatedCard card, bool keeps, uint32_t runs,
                      uint32_t queues_per_peer, TimePoint until)
      : run_(card.run), keeps_(keeps), runs_(runs) {
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
    return {.card = params, .wire = wire_->queues(), .arenas = arenas_->as<std::byte*>()};
  }

  const RunAside run_;
  const bool keeps_;
  uint32_t runs_;
  std::unique_ptr<DeviceMemory> arenas_;
  std::unique_ptr<SimulatedNetwork> wire_;
};

/// A rank's. It lives as long as the network that it is for is made.
class StandInDriver final : public GinDriver {
 public:
  StandInDriver(const NetworkPlace& place, SimulatedCard card, bool keeps, uint32_t runs,
                TimePoint until)
      : place_(place), card_(std::move(card)), keeps_(keeps), runs_(runs), until_(until) {}

  void check(const Accelerator&) override {}
  CommunicatorId make_id() override { return {}; }
  std::unique_ptr<GinCommunicator> communicator(const CommunicatorPlace& mine) override {
    return std::make_unique<StandInCommunicator>(place_, card_, keeps_, runs_, mine.queues_per_peer,
                                                 until_);
  }

 private:
  const NetworkPlace& place_;
  const SimulatedCard card_;
  const bool keeps_;
  const uint32_t runs_;
  const TimePoint until_;
};

/// Returns what makes networks over the stand-in, whose wire `card` runs. After `runs` runs a card
/// that is not kept fails.
inline MakeNetwork over_stand_in(const SimulatedCard& card, bool keeps, GinOptions options = {},
                                 uint32_t runs = UINT32_MAX) {
  return [=](const NetworkPlace& place, TimePoint until) {
    GinOptions mine = options;
    mine.driver = std::make_shared<StandInDriver>(place, card, keeps, runs, until);
    return std::make_shared<GinNetwork>(place, mine, until);
  };
}

}  // namespace tokenyard::gin::testing
