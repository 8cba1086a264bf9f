/// A GPU whose kernels drive a card, as far as the card must know it.
/// CUDA answers, or a test.
#pragma once

#include <cstddef>
#include <string>

#include "fabric/network/gpu_export.hpp"

namespace tokenyard::ibgda {

class GpuMemory : public GpuExport {
 public:
  /// Returns the path of the GPU's PCI device in sysfs; empty: unknown.
  virtual std::string pci() const = 0;
  /// Returns why a card may not use memory of this GPU; empty: it may.
  std::string why_not_exported() const {
    const std::string why = why_no_dma_buf();
    return why.empty() ? why_unordered() : why;
  }
  /// Maps a card's registers for kernels, and returns their address there. Throws OsError.
  virtual std::byte* map_registers(std::byte* registers, size_t bytes) = 0;
  /// `registers`: as the host addresses them.
  virtual void unmap_registers(std::byte* registers) = 0;
};

}  // namespace tokenyard::ibgda
