#include "base/tensor_arguments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

void require_pointer(const char* argument, const void* pointer, uint64_t elements,
                     uint64_t alignment) {
  if (elements == 0) return;
  if (pointer == nullptr)
    throw InvalidArgument(argument, fmt::format("{} elements", elements), "a null pointer");
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address % alignment != 0)
    throw InvalidArgument(argument, fmt::format("an address aligned to {} bytes", alignment),
                          fmt::format("{:#x}", address));
}

}  // namespace

void require_memory(const char* argument, const ConstTensorView& view, uint64_t alignment) {
  if (bytes_of(view.type) == 0)
    throw InvalidArgument(argument, "elements of a DataType", name_of(view.type));
  if (view.bytes() == UINT64_MAX)
    throw InvalidArgument(argument, "bytes that 64 bits can count", view.text());
  if (!view.contiguous())
    throw InvalidArgument(
        argument, "contiguous elements",
        fmt::format("strides {}", std::span(view.strides).first(size_t{view.dims})));
  require_pointer(argument, view.data, view.elements(), alignment);
}

void require_view(const char* argument, const ConstTensorView& view,
                  std::initializer_list<DataType> types, std::initializer_list<uint64_t> shape,
                  uint64_t alignment) {
  const ConstTensorView expected(view.data, *types.begin(), shape);
  if (!view.given()) return require_pointer(argument, nullptr, expected.elements(), alignment);
  const bool type_fits = std::find(types.begin(), types.end(), view.type) != types.end();
  if (!type_fits || view.dims != expected.dims || view.shape != expected.shape) {
    std::string text = expected.text();
    for (const DataType* type = types.begin() + 1; type < types.end(); ++type)
      text += " or " + name_of(*type);
    throw InvalidArgument(argument, text, view.text());
  }
  require_memory(argument, view, alignment);
}

const void* memory_for(const char* argument, const ConstTensorView& view, uint64_t bytes) {
  const uint64_t there_are = view.given() ? view.bytes() : 0;
  if (there_are < bytes)
    throw InvalidArgument(argument, fmt::format("at least {} bytes", bytes),
                          std::to_string(there_are));
  return view.data;
}

void* memory_for(const char* argument, const TensorView& view, uint64_t bytes) {
  memory_for(argument, ConstTensorView(view), bytes);
  return view.data;
}

const void* memory_if_given(const char* argument, const ConstTensorView& view, uint64_t bytes) {
  return view.given() ? memory_for(argument, view, bytes) : nullptr;
}

void* memory_if_given(const char* argument, const TensorView& view, uint64_t bytes) {
  return view.given() ? memory_for(argument, view, bytes) : nullptr;
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
