/// Memory of an accelerator that somebody owns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/accelerator.hpp"

namespace tokenyard {

/// Given back when this goes. Nothing may run that uses it.
class DeviceMemory {
 public:
  enum class Kind : uint8_t { device, shared };
  /// Of no bytes it has a place all the same.
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
