// Units of weights that fit a GPU's block beside a long cache, for all tasks together.
#include <gtest/gtest.h>

#include "decoder/decoder_shapes.hpp"
#include "megakernel/compile.hpp"
#include "megakernel/devices.hpp"

namespace tokenyard::megakernel {
namespace {

/// Capacity of an H200.
constexpr Capacity kCapacity{.multiprocessors = 132, .shared_bytes = 232448};
constexpr uint32_t kUnits = 6;

/// Weights that are never read: tasks only get their addresses.
const auto* const kSomewhere = reinterpret_cast<const BFloat16*>(uintptr_t{1} << 40);
const DecoderWeights::Layer kLayer{kSomewhere, kSomewhere, kSomewhere,
                                   kSomewhere, kSomewhere, kSomewhere};

/// Returns the units that each warp may hold. Throws unless they fit together with all that a block
/// needs.
uint32_t units_that_fit(uint32_t positions_max, uint32_t units = 0) {
  const auto world = std::move(World::in_process(1, "host", OnDevices::quick()).front());
  TensorMemory memory(*world);
  DecoderShape of_layer = gpus_shape(positions_max);
  of_layer.layers = 1;
  const DenseDecoder decoder(
      memory, of_layer,
      {.embedding = kSomewhere, .layers = {kLayer}, .final_norm = kSomewhere, .head = kSomewhere},
      {.blocks = 128, .prompts = {{1}}});
  const std::span graphs(&decoder.graph(), 1);
  Shape shape{.workers = 128,
              .compute_warps = 8,
              .streams = {.unit_bytes = decoder.unit_bytes(), .depth = kUnits, .in_flight = 1}};
  shape.streams.depth = units != 0 ? units : ring_units_that_fit(decoder.graph(), shape, kCapacity);
  const std::span shapes(&shape, 1);
  const Program program = make_program(graphs, 0, shape, compile(graphs, shapes));
  check_capacity(program, shape, decoder.graph(), kCapacity);
  return shape.streams.depth;
}

TEST(DecoderCapacity, RingsLeaveRoomForALongCache) {
  const uint32_t of_short = units_that_fit(528), of_long = units_that_fit(4096);
  EXPECT_GT(of_short, of_long);
  EXPECT_GE(of_long, 2u);
  EXPECT_THROW(units_that_fit(4096, of_long + 1), InvalidGraph);
}

}  // namespace
}  // namespace tokenyard::megakernel
