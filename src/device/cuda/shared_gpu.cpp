#include "device/cuda/shared_gpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "device/cuda/runtime.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::cuda {

/// The launches that become one grid, as they arrive.
struct SharedGpu::Gathering {
  struct Part {
    cudaStream_t stream;
    std::vector<std::byte> params;
  };
  Gathering(const KernelEntry& kernel, const LaunchShape& shape, uint32_t first_rank)
      : kernel(kernel), shape(shape), first_rank(first_rank) {}

  KernelEntry kernel;
  LaunchShape shape;
  uint32_t first_rank;
  std::map<uint32_t, Part> parts;  // By rank, in the order of the grid's rows.
  bool over = false;
  std::exception_ptr failure;
};

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
    : device_(device), timeout_(timeout), loader_(std::make_shared<KernelLoader>(device)) {
  const OnDevice on_device(device_);
  stream_ = make_stream();
  for (size_t slot = 0; slot < ParamsSlot::kSlots; ++slot)
    slots_.push_back(std::make_unique<ParamsSlot>());
}

SharedGpu::~SharedGpu() = default;

Capacity SharedGpu::share() {
  const std::lock_guard lock(mutex_);
  Capacity capacity = loader_->capacity();
  capacity.one_grid = true;
  if (!ranks_.empty())
    capacity.multiprocessors /=
        static_cast<uint32_t>(std::min<size_t>(ranks_.size(), capacity.multiprocessors));
  return capacity;
}

void SharedGpu::enter(uint32_t rank) {
  const std::lock_guard lock(mutex_);
  ranks_.insert(std::lower_bound(ranks_.begin(), ranks_.end(), rank), rank);
}

void SharedGpu::leave(uint32_t rank) {
  const std::lock_guard lock(mutex_);
  std::erase(ranks_, rank);
}

bool SharedGpu::complete(const Gathering& gathering) const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [&](uint32_t rank) { return gathering.parts.contains(rank); });
}

void SharedGpu::launch(uint32_t rank, const KernelEntry& kernel, const LaunchShape& shape,
                       cudaStream_t stream, const void* params,
                       const std::function<void()>& interrupt) {
  constexpr auto kInterruptEvery = std::chrono::milliseconds(50);
  const TimePoint start = Clock::now();
  std::unique_lock lock(mutex_);
  if (!gathering_) gathering_ = std::make_shared<Gathering>(kernel, shape, rank);
  const std::shared_ptr<Gathering> gathering = gathering_;

  // Ends the gathering, launched or failed, and wakes all ranks that wait in it.
  const auto end = [&](std::exception_ptr failure) {
    gathering->failure = std::move(failure);
    gathering->over = true;
    gathering_.reset();
    changed_.notify_all();
  };
  try {
    check_same(*gathering, rank, kernel, shape);
    const auto* bytes = static_cast<const std::byte*>(params);
    gathering->parts.emplace(
        rank, Gathering::Part{stream, std::vector<std::byte>(bytes, bytes + kernel.params_bytes)});
    while (!gathering->over) {
      // The gathering also becomes complete when the missing ranks leave the group.
      if (complete(*gathering)) {
        launch_all(*gathering);
        end(nullptr);
        break;
      }
      if (Clock::now() - start >= timeout_) throw missing(*gathering);
      changed_.wait_for(lock, kInterruptEvery);
      lock.unlock();
      interrupt();
      lock.lock();
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    if (!gathering->over) end(std::current_exception());
    throw;
  }
  if (gathering->failure) std::rethrow_exception(gathering->failure);
}

PeerTimeout SharedGpu::missing(const Gathering& gathering) const {
  const auto rank = std::find_if(ranks_.begin(), ranks_.end(), [&](uint32_t candidate) {
    return !gathering.parts.contains(candidate);
  });
  return PeerTimeout({.rank = rank == ranks_.end() ? gathering.first_rank : *rank,
                      .phase = fmt::format("launch: {}", gathering.kernel.name),
                      .expected = ranks_.size(),
                      .seen = gathering.parts.size(),
                      .waited_s = std::chrono::duration<double>(timeout_).count()});
}

void SharedGpu::check_same(const Gathering& gathering, uint32_t rank, const KernelEntry& kernel,
                           const LaunchShape& shape) const {
  if (std::strcmp(gathering.kernel.name, kernel.name) != 0) {
    throw InvalidArgument("kernel",
                          fmt::format("{}, which rank {} launches on the same GPU",
                                      gathering.kernel.name, gathering.first_rank),
                          fmt::format("{} by rank {}", kernel.name, rank), gathering.first_rank);
  }
  const auto text = [](const LaunchShape& of) {
    return fmt::format("{} blocks of {} warps with {} extra bytes{}", of.blocks, of.warps,
                       of.extra_shared_bytes, of.cooperative ? ", cooperative" : "");
  };
  if (text(gathering.shape) != text(shape)) {
    throw InvalidArgument("shape",
                          fmt::format("{}, as rank {} launches {}", text(gathering.shape),
                                      gathering.first_rank, kernel.name),
                          fmt::format("{} by rank {}", text(shape), rank), gathering.first_rank);
  }
}

void SharedGpu::launch_all(Gathering& gathering) {
  const OnDevice on_device(device_);
  const auto rows = static_cast<uint32_t>(gathering.parts.size());
  const PlannedLaunch planned = loader_->plan(gathering.kernel, gathering.shape, Rows::many, rows);

  const size_t stride = gathering.kernel.params_bytes;
  ParamsSlot& slot = free_slot(stride * rows);
  std::byte* row = slot.host.get();
  for (const auto& [rank, part] : gathering.parts) {
    std::memcpy(row, part.params.data(), stride);
    row += stride;
    check(cudaEventRecord(slot.grid_ended.get(), part.stream), "cudaEventRecord");
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
    check(cudaStreamWaitEvent(part.stream, slot.grid_ended.get(), 0), "cudaStreamWaitEvent");
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
  gpu_->enter(rank_);
}

SharedGpuAccelerator::~SharedGpuAccelerator() {
  gpu_->leave(rank_);
}

void SharedGpuAccelerator::prepare(const KernelEntry& kernel) {
  loader().load(kernel, Rows::many);
  CudaAccelerator::prepare(kernel);  // For local launches.
}

void SharedGpuAccelerator::launch(const KernelEntry& kernel, const LaunchShape& shape,
                                  Stream stream, const void* params) {
  if (shape.local) return CudaAccelerator::launch(kernel, shape, stream, params);
  gpu_->launch(rank_, kernel, shape, reinterpret_cast<cudaStream_t>(stream.native), params,
               interrupt_);
}

}  // namespace tokenyard::cuda
