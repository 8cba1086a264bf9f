/// Row formats: their names, and the size of a row.
#pragma once

#include "expert_parallel/throughput/kernels/element_type.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::throughput {

/// Alignment of rows, which bulk copies and vector accesses require.
inline constexpr uint64_t kRowAlignment = 16;

/// Returns the bytes of one row. Throws InvalidArgument for a format that does not fit `hidden`
/// elements.
uint32_t row_bytes(const RowFormat& format, uint32_t hidden);

/// "bf16", "fp16", ...
const char* name_of(ElementType type);
/// "words", "fp32", ...
const char* name_of(ScaleType type);

/// Returns the type as kernels name it: of rows and of scales that were checked.
ElementType element_type_of(DataType type);
ScaleType scale_type_of(DataType type);
/// Returns the 4-byte words in so many columns of scales.
uint32_t scale_words_of(DataType type, uint64_t columns);

/// Returns views of rows in the arena, and of their scales; `stride`: words from one row, or
/// column, to the next.
ConstTensorView rows_at(const void* data, uint32_t rows, const RowFormat& format, uint32_t hidden);
ConstTensorView scales_at(const void* data, uint32_t rows, const RowFormat& format,
                          uint32_t stride);

}  // namespace tokenyard::throughput
