/// Checks on memory that callers pass to an exchange.
#pragma once

#include <cstdint>

namespace tokenyard {

/// Throws InvalidArgument if `elements` > 0 and the pointer is null or not aligned to `alignment`
/// bytes.
void require_pointer(const void* pointer, const char* argument, uint64_t elements,
                     uint64_t alignment);

/// Throws InvalidArgument if written memory overlaps memory that other blocks or ranks may still
/// read.
void require_no_overlap(const char* argument, const void* written, uint64_t written_bytes,
                        const char* other, const void* read, uint64_t read_bytes);

}  // namespace tokenyard
