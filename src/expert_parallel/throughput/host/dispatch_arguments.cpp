#include "expert_parallel/throughput/host/dispatch_arguments.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "expert_parallel/common/caller_memory.hpp"
#include "expert_parallel/throughput/host/row_caster.hpp"

namespace tokenyard::throughput {

namespace {

void check_format(const Setup& setup, const DispatchInput& input) {
  const uint32_t tokens = input.tokens;
  const RowFormat& format = input.format;
  require_pointer(input.x, "x", uint64_t{tokens} * setup.row_bytes(format), kRowAlignment);
  // So that a rank's words can be counted in 32 bits.
  const uint64_t words_max =
      std::min<uint64_t>(kScaleWordsMax, UINT32_MAX / std::max(setup.options.tokens_max, 1u));
  if (format.scale_words > words_max)
    throw InvalidArgument("scale_words", fmt::format("at most {}", words_max),
                          std::to_string(format.scale_words));
  require_pointer(input.scales, "scales", uint64_t{tokens} * format.scale_words, 4);
  if (input.cast.scales != CastToFp8::Scales::none) format_of_cast(input, setup.options.hidden);
  setup.check_sms(input.sms);
}

}  // namespace

void check_dispatch(const Setup& setup, const DispatchInput& input) {
  if (input.tokens > setup.options.tokens_max)
    throw InvalidArgument("tokens",
                          fmt::format("at most tokens_max = {}", setup.options.tokens_max),
                          std::to_string(input.tokens));
  const uint64_t choices = uint64_t{input.tokens} * setup.options.topk;
  check_format(setup, input);
  require_pointer(input.topk_idx, "topk_idx", choices, input.idx_is_int64 ? 8 : 4);
  if (input.topk_weights != nullptr)
    require_pointer(input.topk_weights, "topk_weights", choices, 4);
}

void check_dispatch_again(const Setup& setup, const DispatchInput& input,
                          const Route::State& route) {
  const auto none = [](const char* argument, bool given) {
    if (given)
      throw InvalidArgument(argument, "none, since the route has those of its first dispatch",
                            "some");
  };
  none("topk_idx", input.topk_idx != nullptr);
  none("topk_weights", input.topk_weights != nullptr);
  none("received_tokens_max", input.received_tokens_max != 0);
  if (input.tokens != route.tokens)
    throw InvalidArgument("tokens", fmt::format("{}, as in the route", route.tokens),
                          std::to_string(input.tokens));
  check_format(setup, input);
}

}  // namespace tokenyard::throughput
