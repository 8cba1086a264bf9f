#include "fabric/nvlink/gpu_memory.hpp"

#include <utility>

namespace tokenyard::nvlink {

PhysicalMemory::PhysicalMemory(std::shared_ptr<const Driver> driver, int device, size_t bytes,
                               bool to_fabric)
    : driver_(std::move(driver)), bytes_(bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | (to_fabric ? CU_MEM_HANDLE_TYPE_FABRIC : 0));
  size_t granule = 0;
  driver_->check(driver_->granularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                 "cuMemGetAllocationGranularity");
  bytes_ = (bytes + granule - 1) / granule * granule;
  driver_->check(driver_->create(&handle_, bytes_, &properties, 0), "cuMemCreate");
}

PhysicalMemory::PhysicalMemory(std::shared_ptr<const Driver> driver, const FileDescriptor& exported,
                               size_t bytes)
    : driver_(std::move(driver)), bytes_(bytes) {
  // The driver takes the descriptor's number as the value of the pointer.
  auto* const number = reinterpret_cast<void*>(static_cast<intptr_t>(exported.native()));
  driver_->check(driver_->import_handle(&handle_, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                 "cuMemImportFromShareableHandle");
}

PhysicalMemory::PhysicalMemory(std::shared_ptr<const Driver> driver,
                               const CUmemFabricHandle& exported, size_t bytes)
    : driver_(std::move(driver)), bytes_(bytes) {
  CUmemFabricHandle handle = exported;
  driver_->check(driver_->import_handle(&handle_, &handle, CU_MEM_HANDLE_TYPE_FABRIC),
                 "cuMemImportFromShareableHandle");
}

PhysicalMemory::~PhysicalMemory() {
  driver_->release(handle_);
}

FileDescriptor PhysicalMemory::export_fd() const {
  int exported = -1;
  driver_->check(
      driver_->export_handle(&exported, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "cuMemExportToShareableHandle");
  return FileDescriptor(exported);
}

CUmemFabricHandle PhysicalMemory::export_to_fabric() const {
  CUmemFabricHandle exported{};
  driver_->check(driver_->export_handle(&exported, handle_, CU_MEM_HANDLE_TYPE_FABRIC, 0),
                 "cuMemExportToShareableHandle");
  return exported;
}

MappedMemory::MappedMemory(const PhysicalMemory& memory, const std::vector<int>& devices)
    : driver_(memory.driver()), bytes_(memory.bytes()) {
  try {
    driver_->check(driver_->reserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve");
    driver_->check(driver_->map(address_, bytes_, 0, memory.native(), 0), "cuMemMap");
    mapped_ = true;
    std::vector<CUmemAccessDesc> access;
    for (const int device : devices)
      access.push_back({.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    driver_->check(driver_->set_access(address_, bytes_, access.data(), access.size()),
                   "cuMemSetAccess");
  } catch (...) {
    give_back();
    throw;
  }
}

MappedMemory::~MappedMemory() {
  give_back();
}

void MappedMemory::give_back() {
  if (mapped_) driver_->unmap(address_, bytes_);
  if (address_ != 0) driver_->free_address(address_, bytes_);
}

}  // namespace tokenyard::nvlink
