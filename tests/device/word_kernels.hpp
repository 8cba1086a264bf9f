/// Kernels that use the identity words and the warps' and blocks' collective words.
#pragma once

#include "device/device.hpp"

namespace tokenyard::testing {

struct Who {
  uint32_t thread, warp, lane, warps, threads, block, blocks;
};
struct IdentityParams {
  Who* who;  ///< [blocks * threads]
};

TOKENYARD_DEVICE void identity_body(const IdentityParams& params) {
  Who& who = params.who[block::index() * block::threads() + thread::index()];
  // Each lane asks a different number of times: no lane may have to wait for others.
  for (uint32_t asked = 0; asked <= warp::lane(); ++asked)
    who = {thread::index(),  warp::index(),  warp::lane(),  warp::count(),
           block::threads(), block::index(), grid::blocks()};
}

struct LaneResults {
  uint32_t shuffled, shuffled_xor, shuffled_up, shuffled_down;
  uint64_t shuffled_wide;
  uint32_t votes, any, all, same;
  uint32_t sum, min, max, bits;
  int32_t signed_sum, signed_min, signed_max;
  uint32_t below, set, first;
};
struct LanesParams {
  const uint32_t* values;  ///< [32]
  uint32_t lanes;          ///< mask of participants
  LaneResults* results;    ///< [32]
};

TOKENYARD_DEVICE void lanes_body(const LanesParams& params) {
  const uint32_t lane = warp::lane(), lanes = params.lanes;
  if (!(lanes >> lane & 1)) return;
  const uint32_t value = params.values[lane];
  const auto as_signed = static_cast<int32_t>(value);
  LaneResults& out = params.results[lane];
  out.shuffled = warp::shuffle(value, 7, lanes);
  out.shuffled_xor = warp::shuffle_xor(value, 3, lanes);
  out.shuffled_up = warp::shuffle_up(value, 2, lanes);
  out.shuffled_down = warp::shuffle_down(value, 2, lanes);
  out.shuffled_wide = warp::shuffle(static_cast<uint64_t>(value) << 32 | lane, 7, lanes);
  out.votes = warp::ballot(value & 1, lanes);
  out.any = warp::any(value == params.values[7], lanes);
  out.all = warp::all(value != params.values[7], lanes);
  out.same = warp::match(value & 3, lanes);
  out.sum = warp::sum(value, lanes);
  out.min = warp::min(value, lanes);
  out.max = warp::max(value, lanes);
  out.bits = warp::bit_or(value, lanes);
  out.signed_sum = warp::sum(as_signed, lanes);
  out.signed_min = warp::min(as_signed, lanes);
  out.signed_max = warp::max(as_signed, lanes);
  warp::sync(lanes);
  out.below = lanes_below();
  out.set = population(value);
  out.first = first_bit(value);
}

struct WholeWarpParams {
  const uint32_t* values;  ///< [32]
  uint32_t* before;        ///< [32] sums of lower lanes
  uint32_t* elected;       ///< [32]
  uint32_t* told;          ///< [32] results of `once`
  uint32_t* times;         ///< [1] number of times that its body ran
};

TOKENYARD_DEVICE void whole_warp_body(const WholeWarpParams& params) {
  const uint32_t lane = warp::lane();
  params.before[lane] = warp::exclusive_sum(params.values[lane]);
  params.elected[lane] = warp::elect();
  params.told[lane] = warp::once([&] { return 100 + (*params.times)++; });
}

inline constexpr uint32_t kBlockThreads = 128;
enum class BlockBarrier : uint8_t { full = 1, empty = 2 };

struct BlockShared {
  uint32_t reversed[kBlockThreads];
  uint32_t box;
};
struct BlockParams {
  uint32_t rounds;
  uint32_t* reversed;     ///< [blocks * threads] value that the opposite thread wrote
  uint32_t* some;         ///< [threads] block::any of "this is the last thread"
  uint32_t* none;         ///< [threads] block::any of false
  uint32_t* received;     ///< [rounds] values that warp 1 found in the box that warp 0 filled
  uint32_t* tail_offset;  ///< [1] bytes from the Shared struct to the tail
  uint32_t* tail;         ///< [threads] value that the opposite thread wrote to the tail
};

/// In each round warp 0 fills a box and warp 1 empties it; other warps do not take part.
TOKENYARD_DEVICE void pass_boxes(const BlockParams& params, BlockShared& shared) {
  const NamedBarrier full(BlockBarrier::full), empty(BlockBarrier::empty);
  for (uint32_t round = 0; round < params.rounds; ++round) {
    if (warp::index() == 0) {
      if (round > 0) empty.sync(64);
      if (warp::elect()) shared.box = 1000 + round;
      full.arrive(64);
    } else if (warp::index() == 1) {
      full.sync(64);
      if (warp::elect()) params.received[round] = shared.box;
      if (round + 1 < params.rounds) empty.arrive(64);
    }
  }
}

TOKENYARD_DEVICE void block_body(const BlockParams& params) {
  auto& shared = block::shared<BlockShared>();
  auto* tail = reinterpret_cast<uint32_t*>(block::shared_tail<BlockShared>());
  const uint32_t me = thread::index(), threads = block::threads(), opposite = threads - 1 - me;
  shared.reversed[me] = block::index() * threads + me;
  tail[me] = 2 * me;
  block::sync();
  params.reversed[block::index() * threads + me] = shared.reversed[opposite];
  params.tail[me] = tail[opposite];
  params.some[me] = block::any(me == threads - 1);
  params.none[me] = block::any(false);
  if (block::index() == 0) pass_boxes(params, shared);
  if (me == 0)
    *params.tail_offset = static_cast<uint32_t>(reinterpret_cast<std::byte*>(tail) -
                                                reinterpret_cast<std::byte*>(&shared));
}

TOKENYARD_DEFINE_KERNEL(identity_kernel, identity_body, IdentityParams, NoShared, 256)
TOKENYARD_DEFINE_KERNEL(lanes_kernel, lanes_body, LanesParams, NoShared, 32)
TOKENYARD_DEFINE_KERNEL(whole_warp_kernel, whole_warp_body, WholeWarpParams, NoShared, 32)
TOKENYARD_DEFINE_KERNEL(block_kernel, block_body, BlockParams, BlockShared, kBlockThreads)

}  // namespace tokenyard::testing
