/// Several ranks of one process on one GPU. Their launches are gathered (device/joint_launches.hpp)
/// into one grid, with one row of blocks per rank: on_gpu_rows as a grid of {blocks, ranks} with
/// all ranks' parameters, on the group's own stream, after all work enqueued in the ranks' streams.
/// Each rank's stream waits for the end of the grid. Each rank launches local kernels for itself.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "device/cuda/accelerator.hpp"
#include "device/cuda/owners.hpp"
#include "device/joint_launches.hpp"

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

  JointLaunches& launches() { return launches_; }

 private:
  struct ParamsSlot;

  void launch_all(const JointLaunches::Gathering& gathering);
  ParamsSlot& free_slot(size_t bytes);

  int device_;
  std::shared_ptr<KernelLoader> loader_;
  OwnedStream stream_;
  std::vector<std::unique_ptr<ParamsSlot>> slots_;  // Used round robin.
  size_t next_slot_ = 0;
  JointLaunches launches_;
};

/// The accelerator of one rank that shares a GPU.
class SharedGpuAccelerator final : public CudaAccelerator, public JointLauncher {
 public:
  SharedGpuAccelerator(std::shared_ptr<SharedGpu> gpu, uint32_t rank,
                       std::function<void()> interrupt);
  ~SharedGpuAccelerator() override;
  Capacity capacity() const override { return gpu_->share(); }
  void prepare(const KernelEntry& kernel) override;
  void launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
              const void* params) override;
  void retire() override { gpu_->launches().retire(rank_); }

 private:
  std::shared_ptr<SharedGpu> gpu_;
  uint32_t rank_;
  std::function<void()> interrupt_;
};

}  // namespace tokenyard::cuda
