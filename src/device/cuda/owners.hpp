/// Owners of what the CUDA runtime hands out. Destructors cannot report errors, so they are
/// ignored; if the GPU has failed, the next call that may throw reports it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <type_traits>

#include "device/cuda/runtime.hpp"

namespace tokenyard::cuda {

struct DestroyStream {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
struct FreeMemory {
  void operator()(void* memory) const { cudaFree(memory); }
};
struct FreePinned {
  void operator()(void* memory) const { cudaFreeHost(memory); }
};

using OwnedStream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using OwnedCudaEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;
template <class T>
using OwnedMemory = std::unique_ptr<T, FreeMemory>;
template <class T>
using OwnedPinned = std::unique_ptr<T, FreePinned>;

// These act on the current device and throw OsError.

/// Makes a stream whose work does not wait for that of the default stream.
inline OwnedStream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return OwnedStream(stream);
}

inline OwnedCudaEvent make_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  return OwnedCudaEvent(event);
}

/// Allocates `bytes` of the device's memory.
template <class T>
OwnedMemory<T> allocate(size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes), "cudaMalloc");
  return OwnedMemory<T>(static_cast<T*>(memory));
}

/// Allocates `bytes` of host memory that every device of the process can copy asynchronously.
template <class T>
OwnedPinned<T> allocate_pinned(size_t bytes, unsigned flags) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, bytes, flags | cudaHostAllocPortable), "cudaHostAlloc");
  return OwnedPinned<T>(static_cast<T*>(memory));
}

}  // namespace tokenyard::cuda
