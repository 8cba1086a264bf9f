/// This rank's network: the queue pairs to the ranks without load/store reach, and the card that
/// executes their requests.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "fabric/abort_flag.hpp"
#include "fabric/network/nic.hpp"

namespace tokenyard {

/// A kernel that runs beside the rank's own. Its abort flag ends it; the destructor waits for that.
class Aside {
 public:
  virtual ~Aside() = default;
};
using RunAside =
    std::function<std::unique_ptr<Aside>(const LaunchShape& shape, const NicParams& params)>;

class Network {
 public:
  struct Options {
    std::vector<std::byte*> arenas;  ///< [ranks] far ranks' arenas, null for the others
    uint64_t seed = 0;
    uint32_t nap_ns_max = 20'000;
  };

  /// `accelerator` must outlive this.
  Network(Accelerator& accelerator, const Options& options, const RunAside& run_aside);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// Returns [ranks] the queue to each rank, null for those with load/store reach. For kernel
  /// parameters; valid while this object lives.
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
