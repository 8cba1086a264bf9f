/// The few CUDA driver calls that the runtime lacks. They are looked up through the runtime, so
/// programs never link libcuda and start on machines without a driver.
#pragma once

#include <cuda.h>

#include <memory>

namespace tokenyard::nvlink {

struct Driver {
  /// Throws Unsupported if there is no driver, or if it lacks a call.
  static std::shared_ptr<const Driver> load();

  /// Throws OsError naming the call, with the driver's error text, unless `result` is success.
  void check(CUresult result, const char* call) const;

  decltype(&cuGetErrorString) error_string;
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemExportToShareableHandle) export_handle;
  decltype(&cuMemImportFromShareableHandle) import_handle;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free_address;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
};

}  // namespace tokenyard::nvlink
