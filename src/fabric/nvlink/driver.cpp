#include "fabric/nvlink/driver.hpp"

#include <cuda_runtime_api.h>

#include <string>

#include "tokenyard/error.hpp"

namespace tokenyard::nvlink {

namespace {

/// The CUDA version (10.2) since which all calls below have had their present form.
constexpr unsigned kSinceVersion = 10020;

template <class Call>
void find(Call& call, const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t result =
      cudaGetDriverEntryPointByVersion(name, &address, kSinceVersion, cudaEnableDefault, &found);
  if (result != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    throw Unsupported(
        "GPU memory that peers can map",
        std::string("the CUDA driver has no ") + name + " (" + cudaGetErrorString(result) + ")");
  }
  call = reinterpret_cast<Call>(address);
}

}  // namespace

std::shared_ptr<const Driver> Driver::load() {
  auto driver = std::make_shared<Driver>();
  find(driver->error_string, "cuGetErrorString");
  find(driver->granularity, "cuMemGetAllocationGranularity");
  find(driver->create, "cuMemCreate");
  find(driver->release, "cuMemRelease");
  find(driver->export_handle, "cuMemExportToShareableHandle");
  find(driver->import_handle, "cuMemImportFromShareableHandle");
  find(driver->reserve, "cuMemAddressReserve");
  find(driver->free_address, "cuMemAddressFree");
  find(driver->map, "cuMemMap");
  find(driver->unmap, "cuMemUnmap");
  find(driver->set_access, "cuMemSetAccess");
  return driver;
}

void Driver::check(CUresult result, const char* call) const {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  if (error_string(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown CUDA error";
  throw OsError(call, static_cast<int>(result), text);
}

}  // namespace tokenyard::nvlink
