#include "device/cuda/runtime.hpp"

#include "tokenyard/error.hpp"

namespace tokenyard::cuda {

void check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  cudaGetLastError();
  throw OsError(call, static_cast<int>(result), cudaGetErrorString(result));
}

OnDevice::OnDevice(int device) {
  check(cudaGetDevice(&before_), "cudaGetDevice");
  if (before_ == device) return;
  check(cudaSetDevice(device), "cudaSetDevice");
  changed_ = true;
}

OnDevice::~OnDevice() {
  // That device was current before, so this fails only if every CUDA call does.
  if (changed_) cudaSetDevice(before_);
}

}  // namespace tokenyard::cuda
