#include "expert_parallel/common/caller_memory.hpp"

#include <fmt/format.h>

#include "tokenyard/error.hpp"

namespace tokenyard {

void require_pointer(const void* pointer, const char* argument, uint64_t elements,
                     uint64_t alignment) {
  if (elements == 0) return;
  if (pointer == nullptr)
    throw InvalidArgument(argument, fmt::format("{} elements", elements), "a null pointer");
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address % alignment != 0)
    throw InvalidArgument(argument, fmt::format("an address aligned to {} bytes", alignment),
                          fmt::format("{:#x}", address));
}

void require_no_overlap(const char* argument, const void* written, uint64_t written_bytes,
                        const char* other, const void* read, uint64_t read_bytes) {
  if (written_bytes == 0 || read_bytes == 0) return;
  const auto to = reinterpret_cast<uintptr_t>(written), from = reinterpret_cast<uintptr_t>(read);
  if (to >= from + read_bytes || from >= to + written_bytes) return;
  throw InvalidArgument(argument, fmt::format("memory that does not overlap {}", other),
                        fmt::format("{} bytes at {:#x}, which overlap its {} bytes at {:#x}",
                                    written_bytes, to, read_bytes, from));
}

}  // namespace tokenyard
