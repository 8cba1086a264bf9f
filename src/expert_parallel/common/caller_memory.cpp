#include "expert_parallel/common/caller_memory.hpp"

#include <fmt/format.h>

#include <algorithm>

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

void require_view(const char* argument, const ConstTensorView& view,
                  std::initializer_list<DataType> types, std::initializer_list<uint64_t> shape,
                  uint64_t alignment) {
  const ConstTensorView expected(view.data, *types.begin(), shape);
  if (!view.given()) return require_pointer(nullptr, argument, expected.elements(), alignment);
  const bool type_fits = std::find(types.begin(), types.end(), view.type) != types.end();
  if (!type_fits || view.dims != expected.dims || view.shape != expected.shape) {
    std::string text = expected.text();
    for (const DataType* type = types.begin() + 1; type < types.end(); ++type)
      text += " or " + name_of(*type);
    throw InvalidArgument(argument, text, view.text());
  }
  if (!view.contiguous()) throw InvalidArgument(argument, "contiguous elements", "others");
  require_pointer(view.data, argument, view.elements(), alignment);
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
