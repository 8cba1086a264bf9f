#include "decoder/decoder_shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "decoder/tasks/dense_kind.hpp"
#include "decoder/tasks/project_attention.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {

namespace {

void require(bool holds, const char* argument, const std::string& expected, uint32_t seen) {
  if (!holds) throw InvalidArgument(argument, expected, fmt::format("{}", seen));
}

/// Checks that sizes are positive and divisible by the ranks.
void check_counts(const DecoderShape& shape, uint32_t ranks) {
  for (const auto& [name, count] : {std::pair{"vocabulary", shape.vocabulary},
                                    {"hidden", shape.hidden},
                                    {"layers", shape.layers},
                                    {"query_heads", shape.query_heads},
                                    {"kv_heads", shape.kv_heads},
                                    {"head_dim", shape.head_dim},
                                    {"inner", shape.inner},
                                    {"page_tokens", shape.page_tokens},
                                    {"positions_max", shape.positions_max}})
    require(count >= 1, name, "at least 1", count);
  require(ranks >= 1 && ranks <= kSumRanksMax, "ranks", fmt::format("1 to {}", kSumRanksMax),
          ranks);
  for (const auto& [name, count] : {std::pair{"kv_heads", shape.kv_heads},
                                    {"inner", shape.inner},
                                    {"vocabulary", shape.vocabulary}})
    require(count % ranks == 0, name, fmt::format("a multiple of the {} ranks", ranks), count);
}

/// Returns whether `blocks` blocks can share the stages. `shape`: that of one rank.
bool can_deal(const DecoderShape& shape, uint32_t blocks) {
  return blocks % shape.kv_heads == 0 && blocks % shape.inner_parts() == 0 &&
         shape.hidden % kTileRows == 0 && shape.hidden / kTileRows % (blocks / shape.kv_heads) == 0;
}

}  // namespace

uint32_t DecoderShape::inner_parts() const {
  return inner / kVectorMax + (inner % kVectorMax != 0 ? 1 : 0);
}

DecoderShape DecoderShape::of_rank(uint32_t ranks) const {
  DecoderShape part = *this;
  part.vocabulary /= ranks;
  part.query_heads /= ranks;
  part.kv_heads /= ranks;
  part.inner /= ranks;
  return part;
}

uint32_t DecoderShape::blocks_of(uint32_t multiprocessors, uint32_t ranks) const {
  check_model(ranks);
  const DecoderShape part = of_rank(ranks);
  const uint32_t most = part.kv_heads * (hidden / kTileRows);  // With more, some have no rows.
  for (uint32_t blocks = std::min(multiprocessors, most); blocks > 0; --blocks)
    if (can_deal(part, blocks)) return blocks;
  return 0;
}

void DecoderShape::check_model(uint32_t ranks) const {
  check_counts(*this, ranks);
  require(hidden % kChunk == 0 && hidden <= kVectorMax, "hidden",
          fmt::format("a multiple of {} up to {}", kChunk, kVectorMax), hidden);
  require(query_heads % kv_heads == 0, "query_heads", "a multiple of kv_heads", query_heads);
  require(group() <= kSplitHeadsMax, "query_heads",
          fmt::format("at most {} per KV head", kSplitHeadsMax), query_heads);
  require(head_dim % (2 * kChunk) == 0 && head_dim <= kHeadDimMax, "head_dim",
          fmt::format("a multiple of {} up to {}", 2 * kChunk, kHeadDimMax), head_dim);
  require(group() * head_dim <= kGroupColumnsMax, "head_dim",
          fmt::format("at most {} with all query heads of a KV head", kGroupColumnsMax), head_dim);
  const DecoderShape part = of_rank(ranks);
  const uint32_t parts = part.inner_parts();
  // If there are several parts, each begins at a tile.
  const uint32_t each = parts == 1 ? kChunk : parts * kTileColumns;
  require(part.inner % each == 0, "inner", fmt::format("a multiple of {}", ranks * each), inner);
  require(kv_heads < kSumTermsMax && ranks * parts < kSumTermsMax, "kv_heads",
          fmt::format("below {}, and as many parts of inner", kSumTermsMax), kv_heads);
  require(positions_max % page_tokens == 0, "positions_max", "a multiple of page_tokens",
          positions_max);
}

void DecoderShape::check(uint32_t blocks, uint32_t ranks) const {
  check_model(ranks);
  const DecoderShape part = of_rank(ranks);
  require(
      blocks > 0 && can_deal(part, blocks), "blocks",
      fmt::format("a multiple of a rank's {} KV heads, whose blocks per head divide hidden into "
                  "equal multiples of eight rows",
                  part.kv_heads),
      blocks);
}

}  // namespace tokenyard::megakernel
