/// An owner of accelerator memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/accelerator.hpp"

namespace tokenyard {

/// Frees its memory in the destructor; by then no running work may use it.
class DeviceMemory {
 public:
  enum class Kind : uint8_t { device, shared };
  /// Allocates `bytes`; the address is valid even if `bytes` is 0.
  DeviceMemory(Accelerator& accelerator, size_t bytes, Kind kind);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  Accelerator& accelerator_;
  Kind kind_;
  void* memory_;
};

}  // namespace tokenyard
