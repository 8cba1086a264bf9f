/// Arguments of calls, checked before anything is launched.
#include <fmt/format.h>

#include <algorithm>

#include "expert_parallel/common/caller_memory.hpp"
#include "expert_parallel/throughput/host/route_state.hpp"

namespace tokenyard {

namespace {

constexpr uint64_t kRowAlignment = 16;  // Of bulk copies and vector accesses.
constexpr uint64_t kRowBytesMax = uint64_t{1} << 28;

}  // namespace

uint32_t ExpertParallel::Parts::row_bytes(const RowFormat& format) const {
  const auto of_hidden = [&](uint64_t bytes) {
    if (format.row_bytes != 0)
      throw InvalidArgument("row_bytes", fmt::format("0 for rows of {}", name_of(format.type)),
                            std::to_string(format.row_bytes));
    if (bytes % kRowAlignment != 0)
      throw InvalidArgument("hidden",
                            fmt::format("rows that fill pieces of {} bytes", kRowAlignment),
                            fmt::format("{} of {}", options.hidden, name_of(format.type)));
    return static_cast<uint32_t>(bytes);
  };
  switch (format.type) {
    case ElementType::bf16:
    case ElementType::fp16:
      return of_hidden(uint64_t{options.hidden} * 2);
    case ElementType::fp32:
      return of_hidden(uint64_t{options.hidden} * 4);
    case ElementType::fp8_e4m3:
      return of_hidden(options.hidden);
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

void ExpertParallel::Parts::check_format(const DispatchInput& input, uint32_t tokens) const {
  const RowFormat& format = input.format;
  require_pointer(input.x, "x", uint64_t{tokens} * row_bytes(format), kRowAlignment);
  // So that a rank can count its words in 32 bits.
  const uint64_t words_max =
      std::min<uint64_t>(throughput::kScaleWordsMax, UINT32_MAX / std::max(options.tokens_max, 1u));
  if (format.scale_words > words_max)
    throw InvalidArgument("scale_words", fmt::format("at most {}", words_max),
                          std::to_string(format.scale_words));
  require_pointer(input.scales, "scales", uint64_t{tokens} * format.scale_words, 4);
  if (input.cast.scales != CastToFp8::Scales::none) check_cast(input);
  check_sms(input.sms);
}

void ExpertParallel::Parts::check_sms(uint32_t sms) const {
  const uint32_t most = std::max(plan.blocks, options.sms_max);
  if (sms > most)
    throw InvalidArgument("sms", fmt::format("at most sms_max = {}", most), std::to_string(sms));
}

void ExpertParallel::Parts::check_local_sms(uint32_t sms, const char* argument) const {
  const uint32_t most =
      std::max({plan.blocks, options.sms_max, accelerator_.capacity().multiprocessors});
  if (sms > most)
    throw InvalidArgument(argument, fmt::format("at most {}, all that there are", most),
                          std::to_string(sms));
}

void ExpertParallel::Parts::check_dispatch(const DispatchInput& input) const {
  if (input.tokens > options.tokens_max)
    throw InvalidArgument("tokens", fmt::format("at most tokens_max = {}", options.tokens_max),
                          std::to_string(input.tokens));
  const uint64_t picks = uint64_t{input.tokens} * options.topk;
  check_format(input, input.tokens);
  require_pointer(input.topk_idx, "topk_idx", picks, input.idx_is_int64 ? 8 : 4);
  if (input.topk_weights != nullptr) require_pointer(input.topk_weights, "topk_weights", picks, 4);
}

/// A known route brings its tokens, experts and weights, and its places.
void ExpertParallel::Parts::check_again(const DispatchInput& input,
                                        const Route::State& route) const {
  const auto none = [](const char* argument, bool given) {
    if (given)
      throw InvalidArgument(argument, "none: the route has what the first dispatch was given",
                            "some");
  };
  none("topk_idx", input.topk_idx != nullptr);
  none("topk_weights", input.topk_weights != nullptr);
  none("received_tokens_max", input.received_tokens_max != 0);
  if (input.tokens != route.tokens)
    throw InvalidArgument("tokens", fmt::format("{} as the route has", route.tokens),
                          std::to_string(input.tokens));
  check_format(input, input.tokens);
}

void ExpertParallel::Parts::check_combine(const CombineInput& input, const Route::State& route,
                                          const CombineOutput& output) const {
  if (input.type != ElementType::bf16 && input.type != ElementType::fp16 &&
      input.type != ElementType::fp32)
    throw InvalidArgument("type", "bf16, fp16 or fp32: others cannot be added up",
                          name_of(input.type));
  const uint64_t bytes = row_bytes({.type = input.type});
  if (input.by_expert != nullptr &&
      (!input.by_expert->route || input.by_expert->route->state().get() != &route))
    throw InvalidArgument("by_expert", "rows of this route", "those of another");
  if (input.weighted && input.by_expert == nullptr)
    throw InvalidArgument("weighted", "results that lie by expert", "one for each received row");
  const uint64_t rows = input.by_expert != nullptr ? input.by_expert->rows : route.rows;
  require_pointer(input.y, "y", rows * bytes, kRowAlignment);
  require_pointer(output.x, "out", route.tokens * bytes, kRowAlignment);
  require_apart("out", output.x, route.tokens * bytes, "y", input.y, rows * bytes);
  for (const void* const bias : input.biases)
    if (bias != nullptr) require_pointer(bias, "biases", route.tokens * bytes, kRowAlignment);
  if (input.rank_order != nullptr)
    require_pointer(input.rank_order, "rank_order", uint64_t{route.tokens} * world.size(), 4);
  check_sms(input.sms);
  check_local_sms(input.local_sms, "local_sms");
}

void ExpertParallel::Parts::check_route(const Route& route) const {
  if (!route.state() || route.state()->made_by != health_)
    throw InvalidArgument("route", "one that a dispatch of this object made",
                          route.state() ? "one of another object" : "an empty one");
}

}  // namespace tokenyard
