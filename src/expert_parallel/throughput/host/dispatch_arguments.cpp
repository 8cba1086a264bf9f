#include "expert_parallel/throughput/host/dispatch_arguments.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/tensor_arguments.hpp"
#include "expert_parallel/throughput/host/row_caster.hpp"

namespace tokenyard::throughput {

namespace {

/// Returns what the views say of the rows and scales, before anything of it is checked but the
/// number of dimensions. An x that is left out has no rows.
RowFormat format_of(const DispatchInput& input) {
  RowFormat format{.scale_order = input.scale_order};
  if (input.x.given()) {
    if (input.x.dims != 2) throw InvalidArgument("x", "[tokens, hidden]", input.x.text());
    format.type = input.x.type;
    if (format.type == DataType::uint8)
      format.row_bytes = static_cast<uint32_t>(std::min<uint64_t>(input.x.shape[1], UINT32_MAX));
  }
  if (input.scales.given()) {
    if (input.scales.dims != 2)
      throw InvalidArgument("scales", "[tokens, words]", input.scales.text());
    format.scale_type = input.scales.type;
    format.scale_words = scale_words_of(format.scale_type, input.scales.shape[1]);
  }
  return format;
}

DispatchArguments checked_rows(const Setup& setup, const DispatchInput& input, uint32_t tokens) {
  const RowFormat format = format_of(input);
  const uint32_t bytes = setup.row_bytes(format);
  const bool opaque = format.type == DataType::uint8;
  require_view("x", input.x, {format.type}, {tokens, opaque ? bytes : setup.options.hidden},
               kRowAlignment);
  // So that a rank's words can be counted in 32 bits.
  const uint64_t words_max =
      std::min<uint64_t>(kScaleWordsMax, UINT32_MAX / std::max(setup.options.tokens_max, 1u));
  if (format.scale_words > words_max)
    throw InvalidArgument("scale_words", fmt::format("at most {}", words_max),
                          std::to_string(format.scale_words));
  const uint32_t columns = format.scale_words * (format.scale_type == DataType::uint8 ? 4 : 1);
  if (input.scales.given())
    require_view("scales", input.scales,
                 {DataType::float32, DataType::int32, DataType::uint32, DataType::uint8},
                 {tokens, columns}, 4);
  const DispatchArguments arguments{
      .x = memory_for("x", input.x, uint64_t{tokens} * bytes),
      .tokens = tokens,
      .format = format,
      .scales = memory_for("scales", input.scales, uint64_t{tokens} * format.scale_words * 4),
      .cast = input.cast,
      .received_tokens_max = input.received_tokens_max,
      .watcher = input.watcher,
      .sms = input.sms,
      .comes_again = input.comes_again};
  if (input.cast.scales != CastToFp8::Scales::none) format_of_cast(arguments, setup.options.hidden);
  setup.check_sms(input.sms);
  return arguments;
}

}  // namespace

DispatchArguments checked_dispatch(const Setup& setup, const DispatchInput& input) {
  const uint64_t tokens = input.x.given() ? input.x.shape[0] : 0;
  if (tokens > setup.options.tokens_max)
    throw InvalidArgument("tokens",
                          fmt::format("at most tokens_max = {}", setup.options.tokens_max),
                          std::to_string(tokens));
  DispatchArguments arguments = checked_rows(setup, input, static_cast<uint32_t>(tokens));
  require_view("topk_idx", input.topk_idx, {DataType::int64, DataType::int32},
               {tokens, setup.options.topk}, bytes_of(input.topk_idx.type));
  if (input.topk_weights.given())
    require_view("topk_weights", input.topk_weights, {DataType::float32},
                 {tokens, setup.options.topk}, 4);
  const uint64_t choices = tokens * setup.options.topk;
  arguments.topk_idx =
      memory_for("topk_idx", input.topk_idx, choices * bytes_of(input.topk_idx.type));
  arguments.idx_is_int64 = input.topk_idx.type != DataType::int32;
  arguments.topk_weights = static_cast<const float*>(
      memory_if_given("topk_weights", input.topk_weights, choices * sizeof(float)));
  return arguments;
}

DispatchArguments checked_dispatch_again(const Setup& setup, const DispatchInput& input,
                                         const Route::State& route) {
  const auto none = [](const char* argument, bool given) {
    if (given)
      throw InvalidArgument(argument, "none, since the route has those of its first dispatch",
                            "some");
  };
  none("topk_idx", input.topk_idx.given());
  none("topk_weights", input.topk_weights.given());
  none("received_tokens_max", input.received_tokens_max != 0);
  const uint64_t tokens = input.x.given() ? input.x.shape[0] : 0;
  if (tokens != route.tokens)
    throw InvalidArgument("tokens", fmt::format("{}, as in the route", route.tokens),
                          std::to_string(tokens));
  return checked_rows(setup, input, route.tokens);
}

}  // namespace tokenyard::throughput
