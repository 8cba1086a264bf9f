#include "fabric/network/network.hpp"

#include <algorithm>

#include "device/owned_event.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

template <class T>
std::shared_ptr<T> Network::array(size_t count, const std::vector<T>& values) {
  Accelerator& owner = accelerator_;
  auto* const memory = static_cast<T*>(owner.allocate(std::max<size_t>(count, 1) * sizeof(T)));
  std::shared_ptr<T> made(memory, [&owner](T* gone) { owner.free(gone); });
  if (!values.empty()) owner.copy(memory, values.data(), values.size() * sizeof(T), Stream{});
  kept_.push_back(made);
  return made;
}

Network::Network(Accelerator& accelerator, const Options& options, const RunAside& run_aside)
    : accelerator_(accelerator), stop_(accelerator), cell_(accelerator, stop_) {
  std::vector<QueuePair*> queues, pairs;
  std::vector<uint32_t> ranks;
  std::vector<std::byte*> arenas;
  for (uint32_t rank = 0; rank < options.arenas.size(); ++rank) {
    queues.push_back(nullptr);
    if (options.arenas[rank] == nullptr) continue;
    queues.back() = array<QueuePair>(1).get();  // Allocated zeroed.
    pairs.push_back(queues.back());
    ranks.push_back(rank);
    arenas.push_back(options.arenas[rank]);
  }
  queues_ = array(queues.size(), queues);
  const NicParams params{
      .wait_context = cell_.wait_context(std::chrono::nanoseconds::max()),
      .seed = options.seed,
      .nap_ns_max = options.nap_ns_max,
      .pairs = array(pairs.size(), pairs).get(),
      .ranks = array(ranks.size(), ranks).get(),
      .peer_arenas = array(arenas.size(), arenas).get(),
  };
  // The card starts only after its tables have been copied.
  const OwnedEvent copied(accelerator_, accelerator_.record(Stream{}));
  const bool ready = accelerator_.wait_until(accelerator_.now() + std::chrono::seconds(30),
                                             [&] { return accelerator_.done(copied.get()); });
  if (!ready) throw InternalError("network: the copy of the card's tables timed out");
  const LaunchShape shape{.blocks = static_cast<uint32_t>(pairs.size()), .warps = 1};
  card_ = run_aside(shape, params);
}

Network::~Network() {
  stop_.cancel();
  card_.reset();
}

}  // namespace tokenyard
