#include "expert_parallel/throughput/host/row_format.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tokenyard::throughput {

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
    case DataType::bfloat16:
    case DataType::float16:
      return of_hidden(uint64_t{hidden} * 2);
    case DataType::float32:
      return of_hidden(uint64_t{hidden} * 4);
    case DataType::float8_e4m3fn:
      return of_hidden(hidden);
    case DataType::uint8:
      if (format.row_bytes == 0 || format.row_bytes % kRowAlignment != 0 ||
          format.row_bytes > kRowBytesMax)
        throw InvalidArgument("row_bytes",
                              fmt::format("a multiple of {} up to {}", kRowAlignment, kRowBytesMax),
                              std::to_string(format.row_bytes));
      return format.row_bytes;
    default:
      throw InvalidArgument("type", "bfloat16, float16, float32, float8_e4m3fn or uint8",
                            name_of(format.type));
  }
}

ElementType element_type_of(DataType type) {
  switch (type) {
    case DataType::float16:
      return ElementType::fp16;
    case DataType::float32:
      return ElementType::fp32;
    case DataType::float8_e4m3fn:
      return ElementType::fp8_e4m3;
    case DataType::uint8:
      return ElementType::bytes;
    default:
      return ElementType::bf16;
  }
}

ScaleType scale_type_of(DataType type) {
  switch (type) {
    case DataType::float32:
      return ScaleType::fp32;
    case DataType::int32:
      return ScaleType::int32;
    case DataType::uint8:
      return ScaleType::bytes;
    default:
      return ScaleType::words;
  }
}

uint32_t scale_words_of(DataType type, uint64_t columns) {
  const uint64_t words = type == DataType::uint8 ? columns / 4 : columns;
  return static_cast<uint32_t>(std::min<uint64_t>(words, UINT32_MAX));
}

ConstTensorView rows_at(const void* data, uint32_t rows, const RowFormat& format, uint32_t hidden) {
  const uint64_t columns = format.type == DataType::uint8 ? format.row_bytes : hidden;
  return {data, format.type, {rows, columns}};
}

ConstTensorView scales_at(const void* data, uint32_t rows, const RowFormat& format,
                          uint32_t stride) {
  if (format.scale_words == 0) return {};
  const bool by_rows = format.scale_order == ScaleOrder::rows;
  if (by_rows && format.scale_type == DataType::uint8)
    return {data, DataType::uint8, {rows, uint64_t{format.scale_words} * 4}};
  const DataType type = format.scale_type == DataType::uint8 ? DataType::uint32 : format.scale_type;
  const ConstTensorView scales(data, type, {rows, format.scale_words});
  return by_rows ? scales : scales.with_strides({1, stride});
}

}  // namespace tokenyard::throughput
