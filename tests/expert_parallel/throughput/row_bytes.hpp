/// Rows of any format as bytes, and the expected result: dispatch moves bits and interprets none.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "expert_parallel/exchange_case.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {

/// A rank's rows and scales: every byte depends on rank, token, position and `call`.
struct RowBytes {
  std::vector<uint32_t> x;       ///< [tokens, row_words]
  std::vector<uint32_t> scales;  ///< [tokens, scale_words]
};

inline uint32_t row_word(uint32_t call, uint32_t rank, uint32_t token, uint32_t word) {
  return scramble(scramble(scramble(call * 977 + rank) + token) + word);
}
inline uint32_t scale_word(uint32_t call, uint32_t rank, uint32_t token, uint32_t word) {
  return row_word(call, rank, token, word + 0x10000);
}

inline RowBytes row_bytes_of(uint32_t call, uint32_t rank, uint32_t tokens, uint32_t row_words,
                             uint32_t scale_words) {
  RowBytes rows;
  for (uint32_t token = 0; token < tokens; ++token) {
    for (uint32_t word = 0; word < row_words; ++word)
      rows.x.push_back(row_word(call, rank, token, word));
    for (uint32_t word = 0; word < scale_words; ++word)
      rows.scales.push_back(scale_word(call, rank, token, word));
  }
  return rows;
}

inline uint32_t row_bytes_of(const RowFormat& format, uint32_t hidden) {
  switch (format.type) {
    case DataType::float32:
      return hidden * 4;
    case DataType::float8_e4m3fn:
      return hidden;
    case DataType::uint8:
      return format.row_bytes;
    default:
      return hidden * 2;
  }
}

/// Returns the words from one row's scales to the next, or from column to column; 0 without scales.
inline uint64_t scale_stride(const ConstTensorView& scales, ScaleOrder order) {
  return scales.given() ? scales.strides[order == ScaleOrder::rows ? 0 : 1] : 0;
}

/// Compares rows and scales with the expected ones, once the call's work has ended.
inline std::string difference_of_bytes(ExpertParallel& exchange, const Received& received,
                                       const Expected& expected, uint32_t call) {
  exchange.wait();
  Accelerator& accelerator = accelerator_of(exchange.world());
  const uint32_t row_words = row_bytes_of(received.format, exchange.options().hidden) / 4;
  const uint32_t scale_words = received.format.scale_words;
  const bool by_rows = received.format.scale_order == ScaleOrder::rows;
  const size_t count = expected.rows.size();
  if (received.rows < count) return fmt::format("{} rows instead of {}", received.rows, count);
  const auto x = read_back(accelerator, received.x.as<uint32_t>(), count * row_words);
  const size_t lines = by_rows ? received.rows : scale_words;
  const uint64_t stride = scale_stride(received.scales, received.format.scale_order);
  const auto scales = read_back(accelerator, received.scales.as<uint32_t>(), lines * stride);
  for (uint32_t row = 0; row < count; ++row) {
    const auto [source, token] = expected.rows[row];
    for (uint32_t word = 0; word < row_words; ++word)
      if (x[row * row_words + word] != row_word(call, source, token, word))
        return fmt::format("word {} of row {} is wrong", word, row);
    for (uint32_t word = 0; word < scale_words; ++word) {
      const size_t at = by_rows ? row * stride + word : word * stride + row;
      if (scales[at] != scale_word(call, source, token, word))
        return fmt::format("scale {} of row {} is wrong", word, row);
    }
  }
  return "";
}

/// Dispatches rows of a format with their scales, on a new route and again on that route.
/// `scales_off_by`: words between aligned memory and the scales.
inline std::string difference_in_format(ExpertParallel& exchange, const TokensOnDevice& tokens,
                                        const Expected& expected, const RowFormat& format,
                                        uint32_t scales_off_by = 0) {
  Accelerator& accelerator = accelerator_of(exchange.world());
  DispatchInput input = tokens.input();
  std::optional<Route> route;
  for (uint32_t call = 0; call < 2; ++call) {
    const RowBytes rows =
        row_bytes_of(call, exchange.world().rank(), tokens.count(),
                     row_bytes_of(format, exchange.options().hidden) / 4, format.scale_words);
    std::vector<uint32_t> moved(scales_off_by);
    moved.insert(moved.end(), rows.scales.begin(), rows.scales.end());
    const DeviceArray<uint32_t> x(accelerator, rows.x), scales(accelerator, moved);
    give_rows(input, format, tokens.count(), exchange.options().hidden, x.data(),
              scales.data() + scales_off_by);
    const Received received = route ? exchange.dispatch(input, *route) : exchange.dispatch(input);
    const std::string text = difference_of_bytes(exchange, received, expected, call);
    if (!text.empty()) return fmt::format("call {}: {}", call, text);
    route = received.route;
    input.topk_idx = {};
    input.topk_weights = {};
  }
  return "";
}

}  // namespace tokenyard::test
