/// A GPU whose kernels drive a card, as far as the card must know it.
/// CUDA answers, or a test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/file_descriptor.hpp"

namespace tokenyard::ibgda {

struct DmaBuf {
  FileDescriptor descriptor;
  uint64_t offset = 0;  ///< of the memory in it, in bytes
};

class GpuMemory {
 public:
  virtual ~GpuMemory() = default;
  /// Returns the path of the GPU's PCI device in sysfs; empty: unknown.
  virtual std::string pci() const = 0;
  /// Returns why a card may not use memory of this GPU; empty: it may.
  virtual std::string why_not_exported() const = 0;
  /// Returns the dma-buf of memory of this GPU, or nothing for memory of the host. Throws OsError.
  virtual std::optional<DmaBuf> dma_buf(const std::byte* memory, size_t bytes) const = 0;
  /// Maps a card's registers for kernels, and returns their address there. Throws OsError.
  virtual std::byte* map_registers(std::byte* registers, size_t bytes) = 0;
  /// `registers`: as the host addresses them.
  virtual void unmap_registers(std::byte* registers) = 0;
};

}  // namespace tokenyard::ibgda
