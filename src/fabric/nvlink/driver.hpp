/// The few calls of the CUDA driver that the runtime lacks. They are looked up through the runtime,
/// so that programs start on machines without a driver and libcuda is never linked.
#pragma once

#include <cuda.h>

#include <memory>

namespace tokenyard::nvlink {

struct Driver {
  /// Throws Unsupported where there is no driver, or one that lacks a call.
  static std::shared_ptr<const Driver> load();

  /// Throws OsError naming the call, with the driver's own words.
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
