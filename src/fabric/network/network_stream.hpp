/// A network's stream for copies to the tables that kernels read.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "device/accelerator.hpp"
#include "device/device_memory.hpp"

namespace tokenyard {

class NetworkStream {
 public:
  /// `timeout`: the world's.
  NetworkStream(Accelerator& accelerator, std::chrono::nanoseconds timeout)
      : accelerator_(accelerator), timeout_(timeout), stream_(accelerator.make_stream()) {}
  ~NetworkStream() { accelerator_.free_stream(stream_); }
  NetworkStream(const NetworkStream&) = delete;
  NetworkStream& operator=(const NetworkStream&) = delete;

  Stream get() const { return stream_; }
  /// Waits for all copies and kernels so far. Throws InternalError if they do not end.
  void finish() const;
  /// Returns a copy of the values in device memory, of at least one, when it has been made.
  template <class T>
  std::unique_ptr<DeviceMemory> device_copy(const std::vector<T>& values) const {
    const size_t bytes = std::max<size_t>(values.size(), 1) * sizeof(T);
    auto memory = std::make_unique<DeviceMemory>(accelerator_, bytes, DeviceMemory::Kind::device);
    if (!values.empty())
      accelerator_.copy(memory->as<T>(), values.data(), values.size() * sizeof(T), stream_);
    finish();
    return memory;
  }

 private:
  Accelerator& accelerator_;
  const std::chrono::nanoseconds timeout_;
  const Stream stream_;
};

}  // namespace tokenyard
