/// Memory of a GPU, as a network card may write to it. CUDA answers, or a test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/file_descriptor.hpp"

namespace tokenyard {

struct DmaBuf {
  FileDescriptor descriptor;
  uint64_t offset = 0;  ///< of the memory in it, in bytes
};

class GpuExport {
 public:
  virtual ~GpuExport() = default;
  /// Returns CUDA's number of the GPU.
  virtual int device() const = 0;
  /// Returns why kernels may see a card's signal before what the card has put; empty: they do not.
  virtual std::string why_unordered() const = 0;
  /// Returns why there are no dma-bufs of this GPU's memory; empty: there are.
  virtual std::string why_no_dma_buf() const = 0;
  /// Returns the dma-buf of memory of this GPU, or nothing for memory of the host. Throws OsError.
  virtual std::optional<DmaBuf> dma_buf(const std::byte* memory, size_t bytes) const = 0;
};

}  // namespace tokenyard
