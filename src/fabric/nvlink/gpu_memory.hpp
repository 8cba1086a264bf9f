/// GPU memory in two steps, so that it can be shared: physical memory, which has a handle that
/// travels, and mappings of it, one in every process that uses it.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "base/file_descriptor.hpp"
#include "fabric/nvlink/driver.hpp"

namespace tokenyard::nvlink {

/// A handle to physical memory of one GPU. The memory goes with its last handle and mapping, in
/// whatever process.
class PhysicalMemory {
 public:
  /// New memory of at least `bytes`, which can be exported.
  PhysicalMemory(std::shared_ptr<const Driver> driver, int device, size_t bytes);
  /// What another process exported: `bytes` as it says.
  PhysicalMemory(std::shared_ptr<const Driver> driver, const FileDescriptor& exported,
                 size_t bytes);
  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  FileDescriptor export_fd() const;
  CUmemGenericAllocationHandle native() const { return handle_; }
  size_t bytes() const { return bytes_; }
  const std::shared_ptr<const Driver>& driver() const { return driver_; }

 private:
  std::shared_ptr<const Driver> driver_;
  CUmemGenericAllocationHandle handle_ = 0;
  size_t bytes_;
};

/// A range of addresses behind which such memory lies, for the GPUs named.
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
