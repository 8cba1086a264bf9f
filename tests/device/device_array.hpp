/// An array in an accelerator's memory, which tests fill and read.
#pragma once

#include <stdexcept>
#include <vector>

#include "device/accelerator.hpp"

namespace tokenyard::testing {

/// Waits until all work on the stream has ended.
inline void drain(Accelerator& accelerator, Stream stream = {}) {
  const Event event = accelerator.record(stream);
  const bool ended = accelerator.wait_until(accelerator.now() + std::chrono::seconds(30),
                                            [&] { return accelerator.done(event); });
  accelerator.free_event(event);
  if (!ended) throw std::runtime_error("the stream did not end within 30 s");
}

template <class T>
class DeviceArray {
 public:
  DeviceArray(Accelerator& accelerator, size_t count)
      : accelerator_(accelerator),
        count_(count),
        data_(static_cast<T*>(accelerator.allocate(count * sizeof(T)))) {}
  DeviceArray(Accelerator& accelerator, const std::vector<T>& values)
      : DeviceArray(accelerator, values.size()) {
    accelerator_.copy(data_, values.data(), count_ * sizeof(T), {});
    drain(accelerator_);
  }
  ~DeviceArray() { accelerator_.free(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  /// Returns the content after all launched work.
  std::vector<T> read() const {
    std::vector<T> values(count_);
    accelerator_.copy(values.data(), data_, count_ * sizeof(T), {});
    drain(accelerator_);
    return values;
  }

 private:
  Accelerator& accelerator_;
  size_t count_;
  T* data_;
};

}  // namespace tokenyard::testing
