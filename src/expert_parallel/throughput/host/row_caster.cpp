#include "expert_parallel/throughput/host/row_caster.hpp"

#include <fmt/format.h>

#include <bit>

#include "expert_parallel/throughput/kernels/cast_rows.hpp"

namespace tokenyard::throughput {

RowFormat format_of_cast(const DispatchArguments& input, uint32_t hidden) {
  const uint32_t channels = input.cast.channels;
  if (input.format.type != DataType::bfloat16)
    throw InvalidArgument("as_fp8", "rows of bf16", name_of(input.format.type));
  if (input.format.scale_words != 0)
    throw InvalidArgument("scales", "none, since the rows are cast here",
                          fmt::format("{} words", input.format.scale_words));
  if (!std::has_single_bit(channels) || channels < 16 || channels > 512 || hidden % channels != 0)
    throw InvalidArgument("scale_channels",
                          fmt::format("16, 32, ... 512 that divides hidden = {}", hidden),
                          std::to_string(channels));
  const uint32_t groups = hidden / channels;
  const bool packed = input.cast.scales == CastToFp8::Scales::packed;
  return {.type = DataType::float8_e4m3fn,
          .row_bytes = 0,
          .scale_words = packed ? (groups + 3) / 4 : groups,
          .scale_order = input.format.scale_order,
          .scale_type = packed ? DataType::int32 : DataType::float32};
}

DispatchArguments RowCaster::cast(const DispatchArguments& input, const Plan& plan, Stream stream,
                                  Route::State& route, std::shared_ptr<CallMemory>& made) const {
  if (input.cast.scales == CastToFp8::Scales::none) return input;
  const uint32_t hidden = context_.setup.options.hidden;
  DispatchArguments as_fp8 = input;
  as_fp8.format = format_of_cast(input, hidden);
  const size_t x_bytes = size_t{input.tokens} * hidden;
  const size_t scales_at = (x_bytes + 15) / 16 * 16;
  made = context_.arena.scratch(scales_at + size_t{input.tokens} * as_fp8.format.scale_words * 4,
                                stream, route);
  std::byte* const to = made->block().data();
  as_fp8.x = to;
  as_fp8.scales = to + scales_at;
  launch(context_.setup.accelerator, cast_rows_kernel,
         {.blocks = plan.blocks, .warps = plan.warps, .cooperative = false, .local = true}, stream,
         {.tokens = input.tokens,
          .hidden = hidden,
          .scale_channels = input.cast.channels,
          .packed = input.cast.scales == CastToFp8::Scales::packed,
          .scale_words = as_fp8.format.scale_words,
          .x = static_cast<const std::byte*>(input.x),
          .to = to,
          .scales = to + scales_at,
          .wait_context = context_.wait_context()});
  return as_fp8;
}

}  // namespace tokenyard::throughput
