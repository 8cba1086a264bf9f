/// Checks of the results that are measured.
#pragma once

#include <fmt/core.h>

#include <cmath>
#include <cstring>

#include "bench/low_latency/batches.hpp"
#include "device/numbers.hpp"

namespace tokenyard::bench {

inline float value_of(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

/// Checks that every FP8 row of every expert is its token within one rounding.
inline void check_rows(World& world, LowLatency& exchange, const Tensors& tensors,
                       const Batch& batch, uint32_t set, Stream stream) {
  const Shape& shape = batch.shape;
  const LowLatencyReceived got =
      exchange.dispatch(tensors.input(set, LowLatencyRows::fp8), {.stream = stream});
  exchange.wait(stream);
  const size_t local = shape.experts / shape.ranks, slots = size_t{shape.ranks} * shape.tokens;
  const size_t groups = (shape.hidden + 127) / 128;
  const auto x = tensors.download<uint8_t>(got.x.data, local * slots * shape.hidden, stream);
  const auto scales = tensors.download<float>(got.scales.data, local * groups * slots, stream);
  const auto sources = tensors.download<int32_t>(got.source_token.data, local * slots, stream);
  const auto ranges = tensors.download<int32_t>(got.ranges.data, local * shape.ranks * 2, stream);
  for (uint32_t source = 0; source < shape.ranks; ++source) {
    const Workload sent = draw(batch, source, set);
    std::vector<uint32_t> next(local);
    for (size_t choice = 0; choice < sent.topk_idx.size(); ++choice) {
      const int64_t expert = sent.topk_idx[choice] - static_cast<int64_t>(world.rank() * local);
      if (expert < 0 || expert >= static_cast<int64_t>(local)) continue;
      const size_t slot =
          ranges[(expert * shape.ranks + source) * 2] + next[static_cast<size_t>(expert)]++;
      const size_t row = static_cast<size_t>(expert) * slots + slot, token = choice / shape.topk;
      if (sources[row] != static_cast<int32_t>(token))
        throw InternalError(fmt::format("slot {} holds token {} of rank {}, not {}", row,
                                        sources[row], source, token));
      for (uint32_t i = 0; i < shape.hidden; ++i) {
        const float scale = scales[(static_cast<size_t>(expert) * groups + i / 128) * slots + slot];
        const float seen = to_float(Float8E4M3{x[row * shape.hidden + i]}) * scale;
        const float wanted = value_of(sent.x[token * shape.hidden + i]);
        if (std::fabs(seen - wanted) > std::fabs(wanted) / 16 + scale * 0x1p-9f)
          throw InternalError(
              fmt::format("slot {} channel {} is {}, not {}", row, i, seen, wanted));
      }
    }
  }
}

/// Checks that identity experts return each token times the sum of its weights, within two
/// roundings, or within the error of ten-bit logarithms.
inline void check_home(World& world, LowLatency& exchange, const Tensors& tensors,
                       const Batch& batch, uint32_t set, BatchKind how, Stream stream) {
  const Shape& shape = batch.shape;
  const LowLatencyCall call{.stream = stream};
  const LowLatencyReceived got =
      exchange.dispatch(tensors.input(set, LowLatencyRows::bf16, how.early), call);
  exchange.combine({.y = got.x,
                    .topk_weights = how.early ? ConstTensorView() : tensors.weights(set),
                    .out = tensors.out,
                    .logfmt = how.logfmt},
                   got.handle, call);
  exchange.wait(stream);
  const auto out =
      tensors.download<uint16_t>(tensors.out.data, size_t{shape.tokens} * shape.hidden, stream);
  const Workload mine = draw(batch, world.rank(), set);
  for (size_t at = 0; at < out.size(); ++at) {
    double weight = 0;
    for (uint32_t choice = 0; choice < shape.topk; ++choice)
      weight += mine.topk_weights[at / shape.hidden * shape.topk + choice];
    const double wanted = weight * value_of(mine.x[at]);
    const double tolerance = how.logfmt ? std::fabs(wanted) / 32 + 1e-6 : std::fabs(wanted) / 120;
    if (std::fabs(value_of(out[at]) - wanted) > tolerance + 1e-30)
      throw InternalError(fmt::format("token {} channel {} is {}, not {}", at / shape.hidden,
                                      at % shape.hidden, value_of(out[at]), wanted));
  }
}

}  // namespace tokenyard::bench
