/// This rank's network: the queue pairs to the ranks it cannot reach by load/store, and the card
/// that works them off.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "fabric/abort_flag.hpp"
#include "fabric/network/nic.hpp"

namespace tokenyard {

/// A kernel that runs beside those of the rank. Ends by its own alarm; the destructor waits for it.
class Aside {
 public:
  virtual ~Aside() = default;
};
using RunAside =
    std::function<std::unique_ptr<Aside>(const LaunchShape& shape, const NicParams& params)>;

class Network {
 public:
  struct Options {
    std::vector<std::byte*> arenas;  ///< [ranks] of the far ones, null for the others
    uint64_t seed = 0;
    uint32_t nap_ns_max = 20'000;
  };

  /// `accelerator` outlives this.
  Network(Accelerator& accelerator, const Options& options, const RunAside& run_aside);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// For kernels' params: [ranks] the queue to each, null for ranks with load/store. A borrower.
  QueuePair* const* queues() const { return queues_.get(); }

 private:
  using Memory = std::shared_ptr<void>;
  template <class T>
  std::shared_ptr<T> array(size_t count, const std::vector<T>& values = {});

  Accelerator& accelerator_;
  AbortFlag stop_;
  ErrorRecord cell_;
  std::vector<Memory> kept_;
  std::shared_ptr<QueuePair*> queues_;
  std::unique_ptr<Aside> card_;
};

}  // namespace tokenyard
