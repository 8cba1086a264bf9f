/// The kernels of one GPU: loaded before they are first launched, and launched only in shapes that
/// fit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>

#include "device/accelerator.hpp"

namespace tokenyard::cuda {

/// Which of an entry's two functions runs.
enum class Rows : uint8_t { one, many };

/// A launch that fits the GPU, in CUDA's terms.
struct PlannedLaunch {
  const void* function;
  dim3 grid, block;
  uint32_t shared_bytes;
  /// Its blocks start together or not at all.
  bool cooperative = false;
};

class KernelLoader {
 public:
  explicit KernelLoader(int device);

  Capacity capacity() const { return capacity_; }
  /// Loads the function and lets it have all the shared memory there is, once. CUDA loads lazily
  /// otherwise, which waits for the whole GPU: a deadlock between kernels that wait for one
  /// another.
  const void* load(const KernelEntry& kernel, Rows rows);
  /// Throws InvalidArgument, naming the field of the shape, if the launch cannot run here.
  PlannedLaunch plan(const KernelEntry& kernel, const LaunchShape& shape, Rows form,
                     uint32_t rows = 1);

 private:
  uint32_t resident_blocks(const PlannedLaunch& launch);

  int device_;
  Capacity capacity_;
  std::mutex mutex_;  // Ranks that share a GPU share this.
  std::map<const void*, cudaFuncAttributes> loaded_;
  std::map<std::tuple<const void*, uint32_t, uint32_t>, uint32_t> resident_;
};

}  // namespace tokenyard::cuda
