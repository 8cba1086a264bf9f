/// How host code calls the CUDA runtime: on the right device, with errors as exceptions.
#pragma once

#include <cuda_runtime_api.h>

namespace tokenyard::cuda {

/// Throws OsError naming the call. Clears the runtime's own memory of the error where it can be
/// cleared.
void check(cudaError_t result, const char* call);

/// Makes a device the calling thread's current one, and gives back the one that was. CUDA's
/// current device is a hidden argument of most calls; the caller's choice is none of our business.
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
