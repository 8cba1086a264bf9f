/// Accelerator memory with an owner.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/accelerator.hpp"

namespace tokenyard {

/// Frees its memory when destroyed; by then no running work may use it.
class DeviceMemory {
 public:
  enum class Kind : uint8_t { device, shared };
  /// Has a valid address even for 0 bytes.
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
