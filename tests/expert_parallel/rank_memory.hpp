/// Device memory of a rank, filled from and read back to vectors.
#pragma once

#include <cstdint>
#include <vector>

#include "device/accelerator.hpp"
#include "tokenyard/tensor.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::test {

inline void await_all(Accelerator& accelerator, Stream stream = {}) {
  const Event event = accelerator.record(stream);
  const bool ended = accelerator.wait_until(accelerator.now() + std::chrono::seconds(60),
                                            [&] { return accelerator.done(event); });
  accelerator.free_event(event);
  if (!ended) throw InternalError("a test's stream did not end");
}

template <class T>
std::vector<T> read_back(Accelerator& accelerator, const T* from, size_t count) {
  std::vector<T> values(count);
  if (count == 0) return values;
  accelerator.copy(values.data(), from, count * sizeof(T), Stream{});
  await_all(accelerator);
  return values;
}

/// An array in device memory.
template <class T>
class DeviceArray {
 public:
  DeviceArray(Accelerator& accelerator, const std::vector<T>& values)
      : DeviceArray(accelerator, values.size()) {
    if (values.empty()) return;
    accelerator_.copy(data_, values.data(), values.size() * sizeof(T), Stream{});
    await_all(accelerator_);
  }
  DeviceArray(Accelerator& accelerator, size_t count)
      : accelerator_(accelerator),
        count_(count),
        data_(static_cast<T*>(accelerator.allocate((count + 1) * sizeof(T)))) {}
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { accelerator_.free(data_); }

  T* data() const { return data_; }
  TensorView view(std::initializer_list<uint64_t> shape) const { return {data_, shape}; }
  /// For types that C++ has no numbers of.
  TensorView view(DataType type, std::initializer_list<uint64_t> shape) const {
    return {data_, type, shape};
  }
  /// Rows of BF16, whose bits `T` is.
  TensorView bf16_rows(uint64_t hidden) const {
    return view(DataType::bfloat16, {count_ / hidden, hidden});
  }
  std::vector<T> read() const { return read_back(accelerator_, data_, count_); }
  /// Fills the array with a pattern that reveals unwritten elements.
  void poison() {
    accelerator_.fill(data_, 0xee, count_ * sizeof(T), Stream{});
    await_all(accelerator_);
  }

 private:
  Accelerator& accelerator_;
  size_t count_;
  T* data_;
};

}  // namespace tokenyard::test
