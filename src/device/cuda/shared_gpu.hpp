/// Several ranks of one process on one GPU. Their kernels wait for one another, so they must be
/// resident together, which separate launches do not guarantee. Their launches are therefore
/// gathered into one grid, with one row of blocks per rank.
///
///     1. A rank's launch() adds its parameters to the gathering and waits.
///     2. The last rank to arrive launches on_gpu_rows as a grid of {blocks, ranks} with all ranks'
///        parameters, on the group's own stream, after all work enqueued in the ranks' streams.
///     3. Each rank's stream waits for the end of the grid, and every launch() returns.
///
/// The ranks must launch the same kernels with the same shapes in the same order, as ranks with the
/// same sequence of collective calls do. Each rank launches local kernels for itself.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device/cuda/accelerator.hpp"
#include "device/cuda/owners.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::cuda {

class SharedGpu {
 public:
  /// `timeout` limits how long a launch waits for the other ranks' launches.
  SharedGpu(int device, std::chrono::nanoseconds timeout);
  ~SharedGpu();
  SharedGpu(const SharedGpu&) = delete;
  SharedGpu& operator=(const SharedGpu&) = delete;

  int device() const { return device_; }
  const std::shared_ptr<KernelLoader>& loader() const { return loader_; }
  /// Returns the share of the GPU that lets all ranks' kernels be resident together.
  Capacity share();

  void enter(uint32_t rank);
  void leave(uint32_t rank);
  /// Returns once the grid is launched. Throws the launch's own error, the same on all ranks;
  /// PeerTimeout with the rank that did not launch in time; InvalidArgument with both ranks if they
  /// launch different kernels or shapes.
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
  OwnedStream stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint32_t> ranks_;  // Participants, in ascending order.
  std::shared_ptr<Gathering> gathering_;
  std::vector<std::unique_ptr<ParamsSlot>> slots_;  // Used round robin.
  size_t next_slot_ = 0;
};

/// The accelerator of one rank that shares a GPU.
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
