/// Launches of ranks that share a device. Their kernels wait for one another, so they must run
/// together, which separate launches do not guarantee. They are therefore gathered:
///
///     1. A rank's launch() adds its parameters to the gathering and waits.
///     2. The last rank to arrive launches the kernel for all of them.
///     3. Every launch() returns.
///
/// The ranks must launch the same kernels with the same shapes in the same order, as ranks with the
/// same sequence of collective calls do. A rank that has ended launches nothing more, and the
/// others do not wait for it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "device/accelerator.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

/// An accelerator whose rank launches together with others.
class JointLauncher {
 public:
  virtual ~JointLauncher() = default;
  /// Has launches of the other ranks go on without this rank from now on, also those that wait for
  /// it. Ends its own, now and later, with Cancelled. Callable from any thread.
  virtual void retire() = 0;
};

class JointLaunches {
 public:
  /// The launches that become one, as they arrive.
  struct Gathering {
    struct Part {
      Stream stream;
      std::vector<std::byte> params;
    };
    KernelEntry kernel;
    LaunchShape shape;
    uint32_t first_rank;               ///< that has arrived
    std::map<uint32_t, Part> parts{};  ///< by rank
    bool over = false;                 ///< launched or failed
    std::exception_ptr failure{};
  };

  /// `timeout` limits how long a launch waits for the other ranks' launches. `launch_all` launches
  /// the kernel with the parameters of all parts.
  JointLaunches(std::chrono::nanoseconds timeout,
                std::function<void(const Gathering& gathering)> launch_all);

  /// Returns the number of ranks that have entered and not left, retired ones included: shapes that
  /// follow from it stay alike on all ranks.
  size_t ranks() const;
  void enter(uint32_t rank);
  void leave(uint32_t rank);
  /// See JointLauncher.
  void retire(uint32_t rank);
  /// Returns once the kernel is launched. Throws the launch's own error, the same on all ranks;
  /// PeerTimeout with the rank that did not launch in time; InvalidArgument with both ranks if they
  /// launch different kernels or shapes; Cancelled if this rank has retired.
  void launch(uint32_t rank, const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
              const void* params, const std::function<void()>& interrupt);

 private:
  /// Wakes all ranks that wait in it.
  void end(Gathering& gathering, std::exception_ptr failure);
  bool is_complete(const Gathering& gathering) const;
  void check_same(const Gathering& gathering, uint32_t rank, const KernelEntry& kernel,
                  const LaunchShape& shape) const;
  PeerTimeout missing(const Gathering& gathering) const;

  const std::chrono::nanoseconds timeout_;
  const std::function<void(const Gathering& gathering)> launch_all_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<uint32_t> ranks_, retired_;
  std::shared_ptr<Gathering> gathering_;
};

}  // namespace tokenyard
