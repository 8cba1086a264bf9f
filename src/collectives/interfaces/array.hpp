/// Arrays as operations move and reduce them: contiguous elements in host memory, of any shape.
#pragma once

#include <cstddef>

#include "tokenyard/tensor.hpp"

namespace tokenyard::collectives {

/// Borrowed: must outlive the operation.
struct Array {
  void* data = nullptr;
  size_t elements = 0;
  DataType type = DataType::uint8;
  size_t bytes() const { return elements * bytes_of(type); }
};
struct ConstArray {
  const void* data = nullptr;
  size_t elements = 0;
  DataType type = DataType::uint8;
  ConstArray() = default;
  ConstArray(const void* data, size_t elements, DataType type)
      : data(data), elements(elements), type(type) {}
  ConstArray(const Array& array) : ConstArray(array.data, array.elements, array.type) {}
  size_t bytes() const { return elements * bytes_of(type); }
};

}  // namespace tokenyard::collectives
