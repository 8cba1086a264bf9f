#include "expert_parallel/throughput/host/row_format.hpp"

#include <fmt/format.h>

namespace tokenyard {

const char* name_of(ElementType type) {
  switch (type) {
    case ElementType::bf16:
      return "bf16";
    case ElementType::fp16:
      return "fp16";
    case ElementType::fp32:
      return "fp32";
    case ElementType::fp8_e4m3:
      return "fp8_e4m3";
    case ElementType::bytes:
      return "bytes";
  }
  return "unknown";
}

const char* name_of(ScaleType type) {
  switch (type) {
    case ScaleType::words:
      return "words";
    case ScaleType::fp32:
      return "fp32";
    case ScaleType::int32:
      return "int32";
    case ScaleType::bytes:
      return "bytes";
  }
  return "unknown";
}

namespace throughput {

namespace {

constexpr uint64_t kRowBytesMax = uint64_t{1} << 28;

}  // namespace

uint32_t row_bytes(const RowFormat& format, uint32_t hidden) {
  const auto of_hidden = [&](uint64_t bytes) {
    if (format.row_bytes != 0)
      throw InvalidArgument("row_bytes", fmt::format("0 for rows of {}", name_of(format.type)),
                            std::to_string(format.row_bytes));
    if (bytes % kRowAlignment != 0)
      throw InvalidArgument("hidden", fmt::format("rows of a multiple of {} bytes", kRowAlignment),
                            fmt::format("{} of {}", hidden, name_of(format.type)));
    return static_cast<uint32_t>(bytes);
  };
  switch (format.type) {
    case ElementType::bf16:
    case ElementType::fp16:
      return of_hidden(uint64_t{hidden} * 2);
    case ElementType::fp32:
      return of_hidden(uint64_t{hidden} * 4);
    case ElementType::fp8_e4m3:
      return of_hidden(hidden);
    case ElementType::bytes:
      if (format.row_bytes == 0 || format.row_bytes % kRowAlignment != 0 ||
          format.row_bytes > kRowBytesMax)
        throw InvalidArgument("row_bytes",
                              fmt::format("a multiple of {} up to {}", kRowAlignment, kRowBytesMax),
                              std::to_string(format.row_bytes));
      return format.row_bytes;
  }
  throw InvalidArgument("type", "an element type", name_of(format.type));
}

}  // namespace throughput

}  // namespace tokenyard
