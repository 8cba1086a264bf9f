/// What memory that callers give to an exchange must be.
#pragma once

#include <cstdint>

namespace tokenyard {

/// Throws InvalidArgument for a null pointer, if there are any elements, and for an address that
/// has not this alignment.
void require_pointer(const void* pointer, const char* argument, uint64_t elements,
                     uint64_t alignment);

/// Throws InvalidArgument if what is written overlaps what other blocks, or other ranks, still
/// read.
void require_no_overlap(const char* argument, const void* written, uint64_t written_bytes,
                        const char* other, const void* read, uint64_t read_bytes);

}  // namespace tokenyard
