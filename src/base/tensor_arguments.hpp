/// Checks on the arrays that callers pass. Every one throws InvalidArgument, which names the
/// argument.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "tokenyard/tensor.hpp"

namespace tokenyard {

/// Throws unless the view's elements lie one after the other in memory that begins at a multiple of
/// `alignment` bytes. A view without elements needs no memory.
void require_memory(const char* argument, const ConstTensorView& view, uint64_t alignment = 1);

/// Throws unless the view has one of these types, this shape, and memory as require_memory demands.
/// A view may be left out where the shape has no elements.
void require_view(const char* argument, const ConstTensorView& view,
                  std::initializer_list<DataType> types, std::initializer_list<uint64_t> shape,
                  uint64_t alignment);

/// Returns the memory of an array for a kernel that uses its first `bytes` bytes. Throws
/// InvalidArgument if there are fewer, whatever was checked before: beyond this call an address has
/// no bounds. An array of which nothing is used may be left out.
const void* memory_for(const char* argument, const ConstTensorView& view, uint64_t bytes);
void* memory_for(const char* argument, const TensorView& view, uint64_t bytes);
/// Returns the same for an array that may be left out: null if it is.
const void* memory_if_given(const char* argument, const ConstTensorView& view, uint64_t bytes);
void* memory_if_given(const char* argument, const TensorView& view, uint64_t bytes);

/// Throws if written memory overlaps memory that other blocks or ranks may still read.
void require_no_overlap(const char* argument, const void* written, uint64_t written_bytes,
                        const char* other, const void* read, uint64_t read_bytes);

}  // namespace tokenyard
