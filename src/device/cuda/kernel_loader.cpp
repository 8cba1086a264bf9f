#include "device/cuda/kernel_loader.hpp"

#include <fmt/format.h>

#include "device/architectures.hpp"
#include "device/cuda/accelerator.hpp"
#include "device/cuda/runtime.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::cuda {

namespace {

/// Blocks that wait for one another need no cooperative launch if this many such launches fit on
/// the GPU at once: any other work that delays some of the blocks ends without them. This saves a
/// microsecond, and a cooperative launch could not overlap the end of the previous kernel.
constexpr uint32_t kLaunchesAtOnce = 4;

uint32_t attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return static_cast<uint32_t>(value);
}

/// Returns the offset of the tail behind a kernel's Shared struct; as block::shared_tail.
uint32_t aligned(uint32_t shared_bytes) {
  return (shared_bytes + 127) / 128 * 128;
}

void require_code_for(int device) {
  const ComputeCapability gpu{
      .major = static_cast<int>(attribute(cudaDevAttrComputeCapabilityMajor, device)),
      .minor = static_cast<int>(attribute(cudaDevAttrComputeCapabilityMinor, device))};
  const std::string missing = missing_code(TOKENYARD_CUDA_ARCHITECTURES, gpu);
  if (!missing.empty()) throw Unsupported(describe_gpu(device), missing);
}

}  // namespace

KernelLoader::KernelLoader(int device)
    : device_(device),
      capacity_{.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device),
                .shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device)} {
  require_code_for(device);
}

const void* KernelLoader::load(const KernelEntry& kernel, Rows rows) {
  const void* function = rows == Rows::one ? kernel.on_gpu : kernel.on_gpu_rows;
  if (function == nullptr) {
    throw Unsupported(fmt::format("kernel {} on a GPU", kernel.name), "it has no GPU side");
  }
  const std::lock_guard lock(mutex_);
  if (loaded_.contains(function)) return function;
  const OnDevice on_device(device_);
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, function), "cudaFuncGetAttributes");
  const auto dynamic = static_cast<int>(capacity_.shared_bytes - attributes.sharedSizeBytes);
  check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic),
        "cudaFuncSetAttribute(MaxDynamicSharedMemorySize)");
  loaded_.emplace(function, attributes);
  return function;
}

PlannedLaunch KernelLoader::plan(const KernelEntry& kernel, const LaunchShape& shape, Rows form,
                                 uint32_t rows) {
  const void* function = load(kernel, form);
  const uint32_t threads = shape.warps * 32;
  if (shape.blocks == 0) throw InvalidArgument("blocks", "at least 1", "0");
  if (shape.warps == 0 || threads > kernel.threads_max) {
    throw InvalidArgument("warps",
                          fmt::format("1 .. {} for {}", kernel.threads_max / 32, kernel.name),
                          fmt::format("{}", shape.warps));
  }
  const uint64_t shared = uint64_t{aligned(kernel.shared_bytes)} + shape.extra_shared_bytes;
  if (shared > capacity_.shared_bytes) {
    throw InvalidArgument(
        "extra_shared_bytes",
        fmt::format("at most {} for {}", capacity_.shared_bytes - aligned(kernel.shared_bytes),
                    kernel.name),
        fmt::format("{}", shape.extra_shared_bytes));
  }
  PlannedLaunch launch{.function = function,
                       .grid = dim3(shape.blocks, rows),
                       .block = dim3(threads),
                       .shared_bytes = static_cast<uint32_t>(shared)};
  if (!shape.cooperative) return launch;
  const uint64_t blocks = uint64_t{shape.blocks} * rows;
  if (blocks > resident_blocks(launch)) {
    throw InvalidArgument("blocks",
                          fmt::format("at most {} of {} resident at once on this GPU",
                                      resident_blocks(launch), kernel.name),
                          form == Rows::one
                              ? fmt::format("{}", shape.blocks)
                              : fmt::format("{} for each of {} ranks", shape.blocks, rows));
  }
  launch.cooperative = blocks * kLaunchesAtOnce > resident_blocks(launch);
  return launch;
}

uint32_t KernelLoader::resident_blocks(const PlannedLaunch& launch) {
  const std::lock_guard lock(mutex_);
  uint32_t& resident =
      resident_[{launch.function, launch.block.x, launch.shared_bytes}];  // 0: not computed yet
  if (resident != 0) return resident;
  const OnDevice on_device(device_);
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &blocks, launch.function, static_cast<int>(launch.block.x), launch.shared_bytes),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return resident = static_cast<uint32_t>(blocks) * capacity_.multiprocessors;
}

}  // namespace tokenyard::cuda
