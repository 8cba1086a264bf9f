/// Checks on memory that callers pass to an exchange.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "tokenyard/tensor.hpp"

namespace tokenyard {

/// Throws InvalidArgument if `elements` > 0 and the pointer is null or not aligned to `alignment`
/// bytes.
void require_pointer(const void* pointer, const char* argument, uint64_t elements,
                     uint64_t alignment);

/// Throws InvalidArgument unless the view has one of these types and this shape, is contiguous, and
/// begins at such an address. A view that is left out has no elements.
void require_view(const char* argument, const ConstTensorView& view,
                  std::initializer_list<DataType> types, std::initializer_list<uint64_t> shape,
                  uint64_t alignment);

/// Throws InvalidArgument if written memory overlaps memory that other blocks or ranks may still
/// read.
void require_no_overlap(const char* argument, const void* written, uint64_t written_bytes,
                        const char* other, const void* read, uint64_t read_bytes);

}  // namespace tokenyard
