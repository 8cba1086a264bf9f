/// GPU memory in two parts, so that it can be shared: physical memory, whose handle can be
/// exported, and mappings of it, one in every process that uses it.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "base/file_descriptor.hpp"
#include "fabric/nvlink/driver.hpp"

namespace tokenyard::nvlink {

/// Owns a handle to physical memory of one GPU. The memory is freed with its last handle and
/// mapping in any process.
class PhysicalMemory {
 public:
  /// Allocates at least `bytes` of memory that can be exported to processes of this machine and, if
  /// `to_fabric`, to those of the GPU's NVLink network. Throws OsError if that cannot be.
  PhysicalMemory(std::shared_ptr<const Driver> driver, int device, size_t bytes,
                 bool to_fabric = false);
  /// Imports memory that another process exported; `bytes` is the size that it reports.
  PhysicalMemory(std::shared_ptr<const Driver> driver, const FileDescriptor& exported,
                 size_t bytes);
  /// Imports what a process of perhaps another machine exported to the NVLink network.
  PhysicalMemory(std::shared_ptr<const Driver> driver, const CUmemFabricHandle& exported,
                 size_t bytes);
  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  FileDescriptor export_fd() const;
  CUmemFabricHandle export_to_fabric() const;
  CUmemGenericAllocationHandle native() const { return handle_; }
  size_t bytes() const { return bytes_; }
  const std::shared_ptr<const Driver>& driver() const { return driver_; }

 private:
  std::shared_ptr<const Driver> driver_;
  CUmemGenericAllocationHandle handle_ = 0;
  size_t bytes_;
};

/// Owns an address range that maps physical memory for the given GPUs.
class MappedMemory {
 public:
  MappedMemory(const PhysicalMemory& memory, const std::vector<int>& devices);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  std::byte* base() const { return reinterpret_cast<std::byte*>(address_); }
  size_t bytes() const { return bytes_; }

 private:
  void give_back();

  std::shared_ptr<const Driver> driver_;
  size_t bytes_;
  CUdeviceptr address_ = 0;
  bool mapped_ = false;
};

}  // namespace tokenyard::nvlink
