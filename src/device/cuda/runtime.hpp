/// Calls of the CUDA runtime: selects the device and turns errors into exceptions.
#pragma once

#include <cuda_runtime_api.h>

namespace tokenyard::cuda {

/// Throws OsError with the name of the call if it failed. Clears the runtime's last error, unless
/// it is sticky.
void check(cudaError_t result, const char* call);

/// Makes a device current for the calling thread, and restores the caller's in the destructor. The
/// current device is a hidden argument of most CUDA calls, so the caller's choice must be kept.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace tokenyard::cuda
