/// Loads the kernels of one GPU before their first launch, and checks that each launch shape fits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>

#include "device/accelerator.hpp"

namespace tokenyard::cuda {

/// Selects one of a KernelEntry's two GPU functions: on_gpu or on_gpu_rows.
enum class Rows : uint8_t { one, many };

/// A launch that fits the GPU, in CUDA's terms.
struct PlannedLaunch {
  const void* function;
  dim3 grid, block;
  uint32_t shared_bytes;
  /// All blocks start together, or none does.
  bool cooperative = false;
};

class KernelLoader {
 public:
  /// Throws Unsupported, naming the GPU and its architecture, if the build has no code for it.
  explicit KernelLoader(int device);

  Capacity capacity() const { return capacity_; }
  /// Loads the function, once, and allows it all of a block's shared memory. CUDA would otherwise
  /// load it at its first launch, which waits for the whole GPU: a deadlock if running kernels wait
  /// for the one being loaded.
  const void* load(const KernelEntry& kernel, Rows rows);
  /// Throws InvalidArgument, naming the field of the shape, if the launch cannot run here.
  PlannedLaunch plan(const KernelEntry& kernel, const LaunchShape& shape, Rows form,
                     uint32_t rows = 1);

 private:
  uint32_t resident_blocks(const PlannedLaunch& launch);

  int device_;
  Capacity capacity_;
  std::mutex mutex_;  // Ranks that share a GPU share the loader.
  std::map<const void*, cudaFuncAttributes> loaded_;
  std::map<std::tuple<const void*, uint32_t, uint32_t>, uint32_t> resident_;
};

}  // namespace tokenyard::cuda
