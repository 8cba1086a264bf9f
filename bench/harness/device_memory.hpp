/// Device memory of a rank, freed with this object.
#pragma once

#include <chrono>
#include <vector>

#include "device/accelerator.hpp"

namespace tokenyard::bench {

class DeviceMemory {
 public:
  explicit DeviceMemory(Accelerator& accelerator) : accelerator_(accelerator) {}
  ~DeviceMemory() {
    for (void* memory : owned_) accelerator_.free(memory);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* reserve(size_t bytes) { return owned_.emplace_back(accelerator_.allocate(bytes)); }

  template <class T>
  const T* upload(const std::vector<T>& from) {
    void* to = reserve(from.size() * sizeof(T));
    accelerator_.copy(to, from.data(), from.size() * sizeof(T), Stream{});
    return static_cast<const T*>(to);
  }

  /// Copies from the device; waits for earlier work of the stream, and for the copy.
  template <class T>
  std::vector<T> download(const void* from, size_t count, Stream stream) const {
    std::vector<T> to(count);
    accelerator_.copy(to.data(), from, count * sizeof(T), stream);
    const Event event = accelerator_.record(stream);
    accelerator_.wait_until(accelerator_.now() + std::chrono::seconds(30),
                            [&] { return accelerator_.done(event); });
    accelerator_.free_event(event);
    return to;
  }

 private:
  Accelerator& accelerator_;
  std::vector<void*> owned_;
};

}  // namespace tokenyard::bench
