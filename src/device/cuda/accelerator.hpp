/// The accelerator of a rank whose kernels run on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "device/accelerator.hpp"
#include "device/cuda/kernel_loader.hpp"
#include "device/cuda/owners.hpp"

namespace tokenyard::cuda {

/// A GPU that one rank has to itself. Events are pooled, so that recording one creates nothing
/// while kernels wait for one another. Freed pinned memory is kept for the next request of its
/// size: unpinning waits for all GPUs of the process, which may be waiting for this rank.
class CudaAccelerator : public Accelerator {
 public:
  /// `interrupt` is called periodically while the host waits, and may throw.
  CudaAccelerator(int device, std::function<void()> interrupt);
  CudaAccelerator(const CudaAccelerator&) = delete;
  CudaAccelerator& operator=(const CudaAccelerator&) = delete;

  AcceleratorKind kind() const override { return AcceleratorKind::gpu; }
  std::string name() const override { return name_; }
  Capacity capacity() const override { return loader_->capacity(); }
  int device_index() const override { return device_; }

  void prepare(const KernelEntry& kernel) override;
  void launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
              const void* params) override;

  void* allocate(size_t bytes) override;
  void free(void* memory) override;
  void drain() override;
  void* allocate_shared(size_t bytes) override;
  void free_shared(void* memory) override;

  void copy(void* to, const void* from, size_t bytes, Stream stream) override;
  void fill(void* to, int byte, size_t bytes, Stream stream) override;

  Stream make_stream() override;
  void free_stream(Stream stream) override;
  bool captures(Stream stream) override;
  Event record(Stream stream) override;
  Event mark(Stream stream) override;
  void wait(Stream stream, Event event) override;
  bool done(Event event) override;
  void free_event(Event event) override;
  float elapsed_ms(Event begin, Event end) override;

  bool wait_until(TimePoint until, const std::function<bool()>& condition) override;
  uint32_t read_flag(const uint32_t* flag) override;
  void write_flag(uint32_t* flag, uint32_t value) override;

 protected:
  CudaAccelerator(int device, std::function<void()> interrupt,
                  std::shared_ptr<KernelLoader> loader);
  KernelLoader& loader() { return *loader_; }

 private:
  /// Unused events of one kind. Their users hold the others.
  using Events = std::vector<OwnedCudaEvent>;
  Event record(Stream stream, unsigned flags, Events& unused);

  int device_;
  std::string name_;
  std::function<void()> interrupt_;
  std::shared_ptr<KernelLoader> loader_;
  OwnedStream setup_;        // Work enqueued here waits for no kernel.
  std::mutex events_mutex_;  // Any thread may drop an arena block, and so free its event.
  Events timed_, marks_;     // Unused events.
  std::set<cudaEvent_t> all_marks_;
  std::mutex pinned_mutex_;
  struct Pinned {
    OwnedPinned<void> memory;
    size_t bytes;
  };
  std::map<void*, Pinned> pinned_;              // All pinned blocks, used or not.
  std::multimap<size_t, void*> pinned_unused_;  // Unused blocks by size.
};

/// Returns "NVIDIA H200 #0 (GPU-d0f6...)".
std::string describe_gpu(int device);
/// Returns the GPU's UUID: the same in every process, independent of CUDA_VISIBLE_DEVICES.
std::string gpu_uuid(int device);
/// Returns the number of GPUs that this process can use; 0 without a driver.
int gpu_count();

/// Launches on the calling thread's current device.
void launch_planned(const PlannedLaunch& planned, const LaunchShape& shape, cudaStream_t stream,
                    void* params);

}  // namespace tokenyard::cuda
