/// A plain reference of low-latency dispatch and combine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "device/numbers.hpp"
#include "expert_parallel/mapped.hpp"
#include "expert_parallel/reference.hpp"
#include "tokenyard/low_latency.hpp"

namespace tokenyard::test {

/// A row as delivered: its bytes, and its scale words.
struct DeliveredRow {
  std::vector<uint8_t> data;
  std::vector<uint32_t> scales;
};

/// Replaces four bytes of ones, which are NaNs, at the head of each piece by other NaNs.
inline void make_canonical(std::vector<uint8_t>& data, uint8_t low, uint8_t high) {
  for (size_t piece = 0; piece < data.size(); piece += 16) {
    const auto head = data.begin() + static_cast<std::ptrdiff_t>(piece);
    if (std::all_of(head, head + 4, [](uint8_t byte) { return byte == 0xff; }))
      for (uint32_t i = 0; i < 4; ++i) data[piece + i] = i % 2 == 0 ? low : high;
  }
}

inline DeliveredRow deliver_bf16(const uint16_t* x, uint32_t hidden) {
  DeliveredRow row;
  row.data.resize(size_t{hidden} * 2);
  std::memcpy(row.data.data(), x, row.data.size());
  make_canonical(row.data, 0xff, 0x7f);
  return row;
}

/// Casts to FP8 with one scale per 128 channels.
inline DeliveredRow deliver_fp8(const uint16_t* x, uint32_t hidden, LowLatencyRows rows) {
  DeliveredRow row;
  for (uint32_t begin = 0; begin < hidden; begin += 128) {
    const uint32_t end = std::min(begin + 128, hidden);
    float largest = 1e-4f;
    for (uint32_t i = begin; i < end; ++i) {
      const float size = std::fabs(from_bf16(x[i]));
      if (size > largest) largest = size;  // False for NaNs.
    }
    float scale = largest / 448.0f, up = 448.0f / largest;
    if (rows != LowLatencyRows::fp8) {
      int exponent = 0;
      const float mantissa = std::frexp(scale, &exponent);  // In [0.5, 1).
      if (mantissa == 0.5f) --exponent;
      scale = std::ldexp(1.0f, exponent);
      up = std::ldexp(1.0f, -exponent);
    }
    for (uint32_t i = begin; i < end; ++i)
      row.data.push_back(to_float8_e4m3(from_bf16(x[i]) * up).bits);
    if (rows != LowLatencyRows::fp8_ue8m0) {
      row.scales.push_back(std::bit_cast<uint32_t>(scale));
    } else {
      const uint32_t group = begin / 128;
      if (group % 4 == 0) row.scales.push_back(0);
      row.scales.back() |= static_cast<uint32_t>(std::ilogb(scale) + 127) << group % 4 * 8;
    }
  }
  // The exponent of an absent group is that of a group of zeros.
  if (rows == LowLatencyRows::fp8_ue8m0)
    for (uint32_t group = (hidden + 127) / 128; group % 4 != 0; ++group)
      row.scales.back() |= static_cast<uint32_t>(std::ilogb(1e-4f / 448.0f) + 1 + 127)
                           << group % 4 * 8;
  return row;
}

/// Rows and counts that a rank must receive.
struct ExpectedBatch {
  std::vector<std::vector<Row>> rows;  ///< per local expert
  std::vector<int32_t> ranges, counts;
};

inline ExpectedBatch expected_batch(const Shape& shape, const std::vector<Tokens>& all,
                                    uint32_t rank, const std::set<uint32_t>& absent = {}) {
  ExpectedBatch expected;
  for (uint32_t local = 0; local < shape.local_experts(rank); ++local) {
    const int64_t expert = int64_t{shape.first_expert(rank)} + local;
    auto& rows = expected.rows.emplace_back();
    for (uint32_t source = 0; source < shape.ranks; ++source) {
      const size_t begin = rows.size();
      for (uint32_t token = 0; token < all[source].count && !absent.contains(source); ++token) {
        const auto choices = all[source].ids.begin() + size_t{token} * shape.topk;
        if (std::find(choices, choices + shape.topk, expert) != choices + shape.topk)
          rows.push_back({source, token});
      }
      expected.ranges.push_back(static_cast<int32_t>(begin));
      expected.ranges.push_back(static_cast<int32_t>(rows.size() - begin));
    }
    expected.counts.push_back(static_cast<int32_t>(rows.size()));
  }
  return expected;
}

/// The result of a token, and how many of its choices are lost with the ranks in `without`.
struct ExpectedSum {
  std::vector<uint16_t> row;
  std::vector<float> bounds;  ///< error bounds if partial sums travel as LogFMT codes
  int32_t lost = 0;
};

/// Sums in the order of the choices: first this rank's own rows in fp32, then rank by rank, each
/// summed in fp32 and rounded before it is sent. The row of a rank with one choice comes unchanged
/// and is weighted here. `call`: as in expert_value.
inline ExpectedSum expected_sum(const Shape& shape, const Tokens& tokens, uint32_t rank,
                                uint32_t token, const std::set<uint32_t>& without = {},
                                uint32_t call = 0) {
  ExpectedSum expected;
  std::vector<uint32_t> ranks = {rank};
  for (uint32_t choice = 0; choice < shape.topk; ++choice) {
    const int64_t id = tokens.ids[size_t{token} * shape.topk + choice];
    if (id == kLostChoice) ++expected.lost;
    if (id < 0) continue;
    uint32_t there = 0;
    while (!shape.holds(there, id)) ++there;
    if (without.contains(there))
      ++expected.lost;
    else if (std::find(ranks.begin(), ranks.end(), there) == ranks.end())
      ranks.push_back(there);
  }
  // The largest share of each rank in each group of channels that have a scale in common.
  constexpr uint32_t kGroup = 128;
  std::map<std::pair<uint32_t, uint32_t>, float> largest;
  for (uint32_t column = 0; column < shape.hidden; ++column) {
    float sum = 0, bound = 1e-30f;
    for (const uint32_t there : ranks) {
      float part = 0, weighed_here = sum;
      uint32_t choices = 0;
      for (uint32_t choice = 0; choice < shape.topk; ++choice) {
        const size_t at = size_t{token} * shape.topk + choice;
        const int64_t id = tokens.ids[at];
        if (!shape.holds(there, id)) continue;
        const float y =
            from_bf16(expert_value(static_cast<uint32_t>(id), {rank, token}, column, call));
        part = std::fma(tokens.weights[at], y, part);
        weighed_here = std::fma(tokens.weights[at], y, sum);
        ++choices;
      }
      sum = there == rank ? part : choices == 1 ? weighed_here : sum + from_bf16(to_bf16(part));
      // 2.2 % of the codes, plus half a percent of the BF16 to which this reference rounds.
      if (there != rank) bound += 0.027f * std::fabs(part);
      float& most = largest[{there, column / kGroup}];
      if (there != rank) most = std::fmax(most, std::fabs(part));
    }
    expected.row.push_back(to_bf16(sum));
    expected.bounds.push_back(bound + std::fabs(sum) / 128);
  }
  // A scale has 32 octaves: what lies below becomes its smallest value, or zero.
  for (const auto& [place, most] : largest)
    for (uint32_t column = place.second * kGroup;
         column < std::min(shape.hidden, (place.second + 1) * kGroup); ++column)
      expected.bounds[column] += std::ldexp(most, -32);
  return expected;
}

}  // namespace tokenyard::test
