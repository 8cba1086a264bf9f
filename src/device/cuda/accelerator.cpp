#include "device/cuda/accelerator.hpp"

#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "device/cuda/runtime.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::cuda {

namespace {

cudaStream_t native(Stream stream) {
  return reinterpret_cast<cudaStream_t>(stream.native);
}
cudaEvent_t native(Event event) {
  return reinterpret_cast<cudaEvent_t>(event.native);
}

/// Shows what happens in its scope to profilers, under a kernel's name.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name) : range_(nvtxRangeStartA(name)) {}
  ~ProfilerRange() { nvtxRangeEnd(range_); }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  nvtxRangeId_t range_;
};

}  // namespace

CudaAccelerator::CudaAccelerator(int device, std::function<void()> interrupt)
    : CudaAccelerator(device, std::move(interrupt), std::make_shared<KernelLoader>(device)) {}

CudaAccelerator::CudaAccelerator(int device, std::function<void()> interrupt,
                                 std::shared_ptr<KernelLoader> loader)
    : device_(device),
      name_(describe_gpu(device)),
      interrupt_(std::move(interrupt)),
      loader_(std::move(loader)) {
  const OnDevice on_device(device_);
  setup_ = cuda::make_stream();
}

void CudaAccelerator::prepare(const KernelEntry& kernel) {
  loader_->load(kernel, Rows::one);
}

void CudaAccelerator::launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
                             const void* params) {
  const PlannedLaunch planned = loader_->plan(kernel, shape, Rows::one);
  const OnDevice on_device(device_);
  const ProfilerRange range(kernel.name);
  launch_planned(planned, shape, native(stream), const_cast<void*>(params));
}

void* CudaAccelerator::allocate(size_t bytes) {
  const OnDevice on_device(device_);
  OwnedMemory<void> memory = cuda::allocate<void>(bytes);
  check(cudaMemsetAsync(memory.get(), 0, bytes, setup_.get()), "cudaMemsetAsync");
  check(cudaStreamSynchronize(setup_.get()), "cudaStreamSynchronize");
  return memory.release();
}

// Does not throw, because destructors call it. If the GPU has failed, the next call that may throw
// reports it.
void CudaAccelerator::free(void* memory) {
  cudaFree(memory);
}

// Does not throw: if the GPU has failed, the next call that may throw reports it.
void CudaAccelerator::drain() {
  const OnDevice on_device(device_);
  cudaDeviceSynchronize();
}

void* CudaAccelerator::allocate_shared(size_t bytes) {
  const OnDevice on_device(device_);
  const std::lock_guard lock(pinned_mutex_);
  void* memory = nullptr;
  if (const auto unused = pinned_unused_.find(bytes); unused != pinned_unused_.end()) {
    memory = unused->second;
    pinned_unused_.erase(unused);
  } else {
    OwnedPinned<void> block = allocate_pinned<void>(bytes, cudaHostAllocMapped);
    memory = block.get();
    pinned_.emplace(memory, Pinned{std::move(block), bytes});
  }
  std::memset(memory, 0, bytes);
  return memory;
}

void CudaAccelerator::free_shared(void* memory) {
  const std::lock_guard lock(pinned_mutex_);
  const auto known = pinned_.find(memory);
  if (known != pinned_.end()) pinned_unused_.emplace(known->second.bytes, memory);
}

void CudaAccelerator::copy(void* to, const void* from, size_t bytes, Stream stream) {
  const OnDevice on_device(device_);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(stream)), "cudaMemcpyAsync");
}

void CudaAccelerator::fill(void* to, int byte, size_t bytes, Stream stream) {
  const OnDevice on_device(device_);
  check(cudaMemsetAsync(to, byte, bytes, native(stream)), "cudaMemsetAsync");
}

Stream CudaAccelerator::make_stream() {
  const OnDevice on_device(device_);
  return Stream(cuda::make_stream().release());
}

void CudaAccelerator::free_stream(Stream stream) {
  cudaStreamDestroy(native(stream));
}

bool CudaAccelerator::captures(Stream stream) {
  if (stream.native == 0) return false;  // The default stream can be neither captured nor queried.
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(native(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

Event CudaAccelerator::record(Stream stream) {
  return record(stream, cudaEventDefault, timed_);
}

Event CudaAccelerator::mark(Stream stream) {
  return record(stream, cudaEventDisableTiming, marks_);
}

Event CudaAccelerator::record(Stream stream, unsigned flags, Events& unused) {
  const OnDevice on_device(device_);
  OwnedCudaEvent event;
  {
    const std::lock_guard lock(events_mutex_);
    if (!unused.empty()) {
      event = std::move(unused.back());
      unused.pop_back();
    }
  }
  if (!event) {
    event = make_event(flags);
    const std::lock_guard lock(events_mutex_);
    if (&unused == &marks_) all_marks_.insert(event.get());
  }
  const cudaError_t recorded = cudaEventRecord(event.get(), native(stream));
  const Event made{reinterpret_cast<uintptr_t>(event.release())};
  if (recorded != cudaSuccess) free_event(made);
  check(recorded, "cudaEventRecord");
  return made;
}

void CudaAccelerator::wait(Stream stream, Event event) {
  const OnDevice on_device(device_);
  check(cudaStreamWaitEvent(native(stream), native(event), 0), "cudaStreamWaitEvent");
}

bool CudaAccelerator::done(Event event) {
  // The query is harmless, but while any stream of the process is being captured, CUDA forbids it
  // unless this thread is in relaxed capture mode.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  const cudaError_t state = cudaEventQuery(native(event));
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  if (state == cudaErrorNotReady) return false;
  check(state, "cudaEventQuery");
  return true;
}

void CudaAccelerator::free_event(Event event) {
  const std::lock_guard lock(events_mutex_);
  (all_marks_.contains(native(event)) ? marks_ : timed_).emplace_back(native(event));
}

float CudaAccelerator::elapsed_ms(Event begin, Event end) {
  float elapsed = 0;
  check(cudaEventElapsedTime(&elapsed, native(begin), native(end)), "cudaEventElapsedTime");
  return elapsed;
}

bool CudaAccelerator::wait_until(TimePoint until, const std::function<bool()>& condition) {
  // Counts arrive within microseconds when all ranks run together, so the first polls are back to
  // back; a rank that waits longer yields its core.
  constexpr int kSpins = 2000;
  constexpr auto kNap = std::chrono::microseconds(50);
  constexpr auto kInterruptEvery = std::chrono::milliseconds(50);
  for (int spin = 0; spin < kSpins; ++spin) {
    if (condition()) return true;
    if (spin > kSpins / 2) std::this_thread::yield();
  }
  TimePoint interrupt_at = now();
  while (!condition()) {
    const TimePoint time = now();
    if (time >= until) return false;
    if (time >= interrupt_at) {
      interrupt_();
      // A kernel that faulted never makes the condition true; later calls on its GPU fail.
      const cudaError_t state = cudaStreamQuery(setup_.get());
      if (state != cudaErrorNotReady) check(state, "a kernel on this GPU");
      interrupt_at = now() + kInterruptEvery;
    }
    std::this_thread::sleep_for(kNap);
  }
  return true;
}

uint32_t CudaAccelerator::read_flag(const uint32_t* flag) {
  return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

void CudaAccelerator::write_flag(uint32_t* flag, uint32_t value) {
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}

void launch_planned(const PlannedLaunch& planned, const LaunchShape& shape, cudaStream_t stream,
                    void* params) {
  std::array<cudaLaunchAttribute, 2> attributes{};
  unsigned count = 0;
  if (planned.cooperative) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  }
  if (shape.overlap_previous && !planned.cooperative) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = planned.grid;
  config.blockDim = planned.block;
  config.dynamicSmemBytes = planned.shared_bytes;
  config.stream = stream;
  config.attrs = attributes.data();
  config.numAttrs = count;
  void* arguments[] = {params};
  check(cudaLaunchKernelExC(&config, planned.function, arguments), "cudaLaunchKernelExC");
}

std::string gpu_uuid(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  std::string text = "GPU-";
  for (int byte = 0; byte < 16; ++byte) {
    if (byte == 4 || byte == 6 || byte == 8 || byte == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(properties.uuid.bytes[byte]));
  }
  return text;
}

std::string describe_gpu(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return fmt::format("{} #{} ({})", properties.name, device, gpu_uuid(device));
}

int gpu_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // Clears the error "no driver" or "no GPU", so no later call reports it.
  return 0;
}

}  // namespace tokenyard::cuda
