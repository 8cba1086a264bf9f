#include "device/cuda/shared_gpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "device/cuda/runtime.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::cuda {

namespace {

cudaStream_t native_of(Stream stream) {
  return reinterpret_cast<cudaStream_t>(stream.native);
}

}  // namespace

/// Memory for the parameters of one grid while it runs.
struct SharedGpu::ParamsSlot {
  static constexpr size_t kBytes = 64 * 1024;
  static constexpr size_t kSlots = 16;

  OwnedPinned<std::byte> host =  // Pinned, so that the copy is asynchronous.
      allocate_pinned<std::byte>(kBytes, cudaHostAllocDefault);
  OwnedMemory<std::byte> device = allocate<std::byte>(kBytes);
  OwnedCudaEvent grid_ended = make_event(cudaEventDisableTiming);
};

SharedGpu::SharedGpu(int device, std::chrono::nanoseconds timeout)
    : device_(device),
      loader_(std::make_shared<KernelLoader>(device)),
      launches_(timeout,
                [this](const JointLaunches::Gathering& gathering) { launch_all(gathering); }) {
  const OnDevice on_device(device_);
  stream_ = make_stream();
  for (size_t slot = 0; slot < ParamsSlot::kSlots; ++slot)
    slots_.push_back(std::make_unique<ParamsSlot>());
}

SharedGpu::~SharedGpu() = default;

Capacity SharedGpu::share() {
  Capacity capacity = loader_->capacity();
  capacity.one_grid = true;
  if (const size_t ranks = launches_.ranks(); ranks != 0)
    capacity.multiprocessors /=
        static_cast<uint32_t>(std::min<size_t>(ranks, capacity.multiprocessors));
  return capacity;
}

void SharedGpu::launch_all(const JointLaunches::Gathering& gathering) {
  const OnDevice on_device(device_);
  const auto rows = static_cast<uint32_t>(gathering.parts.size());
  const PlannedLaunch planned = loader_->plan(gathering.kernel, gathering.shape, Rows::many, rows);

  const size_t stride = gathering.kernel.params_bytes;
  ParamsSlot& slot = free_slot(stride * rows);
  std::byte* row = slot.host.get();
  for (const auto& [rank, part] : gathering.parts) {
    std::memcpy(row, part.params.data(), stride);
    row += stride;
    check(cudaEventRecord(slot.grid_ended.get(), native_of(part.stream)), "cudaEventRecord");
    check(cudaStreamWaitEvent(stream_.get(), slot.grid_ended.get(), 0), "cudaStreamWaitEvent");
  }
  std::byte* device_rows = slot.device.get();
  check(cudaMemcpyAsync(device_rows, slot.host.get(), stride * rows, cudaMemcpyHostToDevice,
                        stream_.get()),
        "cudaMemcpyAsync");
  LaunchShape shape = gathering.shape;
  shape.overlap_previous = false;  // It follows event waits and a copy in its stream, not a kernel.
  launch_planned(planned, shape, stream_.get(), &device_rows);
  check(cudaEventRecord(slot.grid_ended.get(), stream_.get()), "cudaEventRecord");
  for (const auto& [rank, part] : gathering.parts)
    check(cudaStreamWaitEvent(native_of(part.stream), slot.grid_ended.get(), 0),
          "cudaStreamWaitEvent");
}

SharedGpu::ParamsSlot& SharedGpu::free_slot(size_t bytes) {
  if (bytes > ParamsSlot::kBytes) {
    throw InvalidArgument("ranks",
                          fmt::format("parameters of at most {} bytes", ParamsSlot::kBytes),
                          fmt::format("{} bytes", bytes));
  }
  ParamsSlot& slot = *slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % slots_.size();
  // The slot was used sixteen grids ago, so this rarely waits; that grid ends because its waits do.
  check(cudaEventSynchronize(slot.grid_ended.get()), "cudaEventSynchronize");
  return slot;
}

SharedGpuAccelerator::SharedGpuAccelerator(std::shared_ptr<SharedGpu> gpu, uint32_t rank,
                                           std::function<void()> interrupt)
    : CudaAccelerator(gpu->device(), interrupt, gpu->loader()),
      gpu_(std::move(gpu)),
      rank_(rank),
      interrupt_(std::move(interrupt)) {
  gpu_->launches().enter(rank_);
}

SharedGpuAccelerator::~SharedGpuAccelerator() {
  gpu_->launches().leave(rank_);
}

void SharedGpuAccelerator::prepare(const KernelEntry& kernel) {
  loader().load(kernel, Rows::many);
  CudaAccelerator::prepare(kernel);  // For local launches.
}

void SharedGpuAccelerator::launch(const KernelEntry& kernel, const LaunchShape& shape,
                                  Stream stream, const void* params) {
  if (shape.local) return CudaAccelerator::launch(kernel, shape, stream, params);
  gpu_->launches().launch(rank_, kernel, shape, stream, params, interrupt_);
}

}  // namespace tokenyard::cuda
