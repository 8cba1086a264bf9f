/// The accelerators of all ranks of a model: the kernels of an exchange between hosts run together
/// in virtual time, once every rank has launched; all else runs on the host at once. Throughput's
/// kernels run when they are launched, since the host reads what they count; those of low latency
/// when all ranks meet.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>

#include "bench/across_hosts_model/machine.hpp"
#include "simt/host_accelerator.hpp"

namespace tokenyard::bench {

/// The meeting of all ranks' launches.
class Calls {
 public:
  using Run = std::function<void(std::vector<std::vector<Launched>>&)>;

  Calls(uint32_t ranks, Run run) : launches_(ranks), run_(std::move(run)) {}
  /// Adds a kernel to those of a rank's call.
  void add(uint32_t rank, Launched launched) { launches_[rank].push_back(std::move(launched)); }
  /// Returns once the call of all ranks has ended; the last rank runs it.
  void meet();

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<std::vector<Launched>> launches_;  ///< [ranks]
  uint32_t came_ = 0;
  uint64_t calls_ = 0;
  Run run_;
};

class ModelAccelerator final : public simt::HostAccelerator {
 public:
  ModelAccelerator(Calls& calls, uint32_t rank)
      : HostAccelerator([] {}), calls_(calls), rank_(rank) {}

  AcceleratorKind kind() const override { return AcceleratorKind::gpu; }
  std::string name() const override { return "model of a GPU"; }
  Capacity capacity() const override { return {.multiprocessors = 132, .shared_bytes = 227 << 10}; }
  void launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
              const void* params) override;

 private:
  Calls& calls_;
  const uint32_t rank_;
};

}  // namespace tokenyard::bench
