#include "world/simulated.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "device/accelerator.hpp"
#include "fabric/host/in_process_fabric.hpp"
#include "fabric/in_process_mesh.hpp"
#include "fabric/world_access.hpp"
#include "simt/source_line.hpp"
#include "simulation/simulated_accelerator.hpp"
#include "world/parts.hpp"

namespace tokenyard::simulated {
namespace {

using simulation::ModelMemory;
using simulation::ReleaseRef;
using simulation::SimulatedAccelerator;
using simulation::Simulation;

/// Reports the order that messages of the mesh create between ranks to the memory model. A rank
/// that reads its mailbox is taken to have received every message in it; a goodbye is received at
/// once.
class SimulatedMesh final : public Mesh {
 public:
  struct Post {
    explicit Post(uint32_t slots) : unread(slots), hosts(slots) {}
    std::vector<std::vector<ReleaseRef>> unread;          ///< unread messages to each slot
    std::vector<std::optional<ModelMemory::Host>> hosts;  ///< of each slot, once present
  };

  SimulatedMesh(std::shared_ptr<InProcessMesh> mesh, ModelMemory& memory, ModelMemory::Host host,
                std::shared_ptr<Post> post)
      : mesh_(std::move(mesh)), memory_(memory), host_(host), post_(std::move(post)) {
    post_->hosts[slot()] = host;
  }

  void leave() override {
    const ReleaseRef goodbye = memory_.release(host_);
    for (uint32_t peer = 0; peer < slots(); ++peer)
      if (peer != slot() && post_->hosts[peer]) memory_.acquire(*post_->hosts[peer], goodbye);
    mesh_->leave();
    memory_.happened();
  }
  uint32_t slot() const override { return mesh_->slot(); }
  uint32_t slots() const override { return mesh_->slots(); }
  void send(uint32_t to, const Message& message) override {
    post_->unread[to].push_back(memory_.release(host_));
    mesh_->send(to, message);
    memory_.happened();
  }
  Mailbox& mailbox() override {
    std::vector<ReleaseRef>& mine = post_->unread[slot()];
    for (const ReleaseRef& message : mine) memory_.acquire(host_, message);
    mine.clear();
    return mesh_->mailbox();
  }
  bool one_process() const override { return true; }

 private:
  std::shared_ptr<InProcessMesh> mesh_;
  ModelMemory& memory_;
  ModelMemory::Host host_;
  std::shared_ptr<Post> post_;
};

/// A rank's network card: a kernel on a stream of its own, for which nothing waits.
class AsideStream final : public Aside {
 public:
  AsideStream(Simulation& simulation, uint32_t rank, ModelMemory::Host host,
              const KernelEntry& kernel, const LaunchShape& shape, const void* params)
      : card_(simulation, rank, host) {
    card_.launch(kernel, shape, Stream{}, params);
  }
  ~AsideStream() override { card_.drain(); }

 private:
  SimulatedAccelerator card_;
};

/// Fills unused arena memory with implausible data: bytes of a NaN in every format.
constexpr int kPoison = 0xff;

}  // namespace

void Result::require_clean(const std::vector<uint32_t>& expected) const {
  std::string text = failure;
  for (const std::string& finding : findings) text += (text.empty() ? "" : "\n") + finding;
  for (uint32_t rank = 0; rank < thrown.size(); ++rank) {
    if (!thrown[rank] || std::find(expected.begin(), expected.end(), rank) != expected.end())
      continue;
    try {
      std::rethrow_exception(thrown[rank]);
    } catch (const std::exception& error) {
      text += fmt::format("{}rank {} threw: {}", text.empty() ? "" : "\n", rank, error.what());
    }
  }
  if (!text.empty()) throw simulation::SuiteFailure(text + "\n" + drawn);
}

void Result::require_clean_after(const std::optional<simulation::RankStop>& stop) const {
  std::vector<uint32_t> may_throw;
  for (uint32_t rank = 0; stop && rank < thrown.size(); ++rank) {
    if (!thrown[rank]) continue;
    bool may = rank == stop->rank;
    try {
      std::rethrow_exception(thrown[rank]);
    } catch (const PeerTimeout&) {
      may = true;
    } catch (const PeerLost&) {
      may = true;
    } catch (...) {
      // No other exception is a valid reaction to a stopped rank.
    }
    if (may) may_throw.push_back(rank);
  }
  require_clean(may_throw);
}

Result run(simulation::SeedRun& seed, const Options& options,
           const std::function<void(World&)>& program) {
  auto ends = InProcessMesh::make(options.ranks);
  const auto post = std::make_shared<SimulatedMesh::Post>(options.ranks);
  Simulation simulation({.ranks = options.ranks,
                         .random = seed.random.split(),
                         .trace = &seed.trace,
                         .mutator = seed.mutator,
                         .stop = options.stop,
                         .on_stop = [&](uint32_t rank) {
                           if (options.stop_is_noticed) ends[rank]->vanish();
                         }});
  Result result;
  result.thrown.resize(options.ranks);
  result.drawn = simulation.text();

  const auto arena_of_rank = [&simulation](size_t bytes) {
    std::byte* const base =
        simulation.allocate("arena", bytes, simulation.executor().current_rank());
    std::fill_n(base, bytes, static_cast<std::byte>(kPoison));
    return std::shared_ptr<std::byte>(
        base, [&simulation](std::byte* memory) { simulation.free(memory); });
  };
  const auto fabric = options.host_of.empty()
                          ? std::make_shared<InProcessFabric>(options.hosts, arena_of_rank)
                          : std::make_shared<InProcessFabric>(options.host_of, arena_of_rank);
  WorldOptions world_options;
  world_options.timeout = options.timeout;
  world_options.arena_bytes = options.arena_bytes;
  world_options.hosts = options.hosts;

  CardOptions card_options = options.card;
  const bool has_cards = options.hosts > 1 || !options.host_of.empty() || options.within_hosts;
  if (has_cards && card_options.seed == 0) card_options.seed = seed.random.next();

  std::vector<bool> finished(options.ranks);
  for (const uint32_t rank : options.absent) finished[rank] = true;
  for (uint32_t rank = 0; rank < options.ranks; ++rank) {
    if (finished[rank]) continue;
    simulation.add_program(rank, "host", [&, rank](ModelMemory::Host host) {
      try {
        const auto accelerator = std::make_shared<SimulatedAccelerator>(simulation, rank, host);
        const auto mesh =
            std::make_shared<SimulatedMesh>(ends[rank], simulation.memory(), host, post);
        SimulatedCard card;
        card.options = card_options;
        card.queues_per_peer = options.queues_per_peer;
        card.within_hosts = options.within_hosts;
        card.run = [&](const KernelEntry& kernel, const LaunchShape& shape, const void* params) {
          return std::make_unique<AsideStream>(simulation, rank, host, kernel, shape, params);
        };
        const MakeNetwork network = options.network ? options.network(card) : MakeNetwork{};
        const std::unique_ptr<World> world =
            join(Membership::of(*mesh, options.absent), mesh, accelerator, fabric, world_options,
                 nullptr, card, network);
        epoch_before(*world) = options.epoch_before;
        try {
          program(*world);
        } catch (...) {
          result.thrown[rank] = std::current_exception();
        }
        accelerator->drain();
      } catch (...) {
        result.thrown[rank] = std::current_exception();
      }
      finished[rank] = true;
    });
  }
  try {
    simulation.run([&] {
      for (uint32_t rank = 0; rank < options.ranks; ++rank)
        if (!finished[rank] && !simulation.stopped(rank)) return false;
      return true;
    });
  } catch (const std::exception& error) {
    result.failure = error.what();
  }
  for (const simulation::Finding& finding : simulation.memory().findings().list())
    result.findings.push_back(finding.text(simt::source_line));
  result.steps = simulation.memory().steps();
  // While memory still exists: ends send goodbyes, also to those of a stopped rank.
  ends.clear();
  return result;
}

}  // namespace tokenyard::simulated
