/// Several ranks of one process on one GPU. Their kernels wait for one another, so they must be
/// resident together, which separate launches do not promise: the ranks' launches are gathered and
/// become one grid, with one row of blocks per rank.
///
///     1. A rank's launch() leaves its parameters in the gathering and waits.
///     2. The last rank to come launches {blocks, ranks} of the kernel's row form over the array of
///        all parameters, on the group's own stream, after all work now in each rank's stream.
///     3. Each rank's stream waits for the grid's end, and each launch() returns.
///
/// The ranks must launch the same kernels in the same shapes in the same order, as ranks that call
/// collectives alike do. Local kernels are launched by each rank for itself.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device/cuda/accelerator.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::cuda {

class SharedGpu {
 public:
  /// `timeout`: how long a launch may wait for the other ranks' launches.
  SharedGpu(int device, std::chrono::nanoseconds timeout);
  ~SharedGpu();
  SharedGpu(const SharedGpu&) = delete;
  SharedGpu& operator=(const SharedGpu&) = delete;

  int device() const { return device_; }
  const std::shared_ptr<KernelLoader>& loader() const { return loader_; }
  /// What each rank may take, so that all of them are resident together.
  Capacity share();

  void enter(uint32_t rank);
  void leave(uint32_t rank);
  /// Returns once the grid is launched. Throws the launch's own error, the same on all ranks;
  /// PeerTimeout naming a rank that did not come; InvalidArgument naming both where ranks launch
  /// different things.
  void launch(uint32_t rank, const KernelEntry& kernel, const LaunchShape& shape,
              cudaStream_t stream, const void* params, const std::function<void()>& interrupt);

 private:
  struct Gathering;
  struct ParamsSlot;

  void check_same(const Gathering& gathering, uint32_t rank, const KernelEntry& kernel,
                  const LaunchShape& shape) const;
  PeerTimeout missing(const Gathering& gathering) const;
  void launch_all(Gathering& gathering);
  ParamsSlot& free_slot(size_t bytes);
  bool complete(const Gathering& gathering) const;

  int device_;
  std::chrono::nanoseconds timeout_;
  std::shared_ptr<KernelLoader> loader_;
  cudaStream_t stream_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint32_t> ranks_;  // Who takes part, ascending.
  std::shared_ptr<Gathering> gathering_;
  std::vector<std::unique_ptr<ParamsSlot>> slots_;  // Used in turn.
  size_t next_slot_ = 0;
};

/// One rank of a shared GPU.
class SharedGpuAccelerator final : public CudaAccelerator {
 public:
  SharedGpuAccelerator(std::shared_ptr<SharedGpu> gpu, uint32_t rank,
                       std::function<void()> interrupt);
  ~SharedGpuAccelerator() override;
  Capacity capacity() const override { return gpu_->share(); }
  void prepare(const KernelEntry& kernel) override;
  void launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
              const void* params) override;

 private:
  std::shared_ptr<SharedGpu> gpu_;
  uint32_t rank_;
  std::function<void()> interrupt_;
};

}  // namespace tokenyard::cuda
