/// Kernels that each break one rule of the vocabulary.
#pragma once

#include "device/device.hpp"

namespace tokenyard::testing {

enum class MisuseBarrier : uint8_t { one = 1, sixteen = 16 };

struct MisuseParams {
  uint32_t* memory = nullptr;  ///< [64], zero
  WaitContext wait_context;
};

TOKENYARD_DEVICE void different_words_body(const MisuseParams&) {
  if (warp::lane() == 3)
    warp::sum(1u);
  else
    warp::ballot(true);
}

TOKENYARD_DEVICE void different_masks_body(const MisuseParams&) {
  warp::sync(warp::lane() < 16 ? 0x0001ffffu : 0xffff8000u);
}

TOKENYARD_DEVICE void different_places_body(const MisuseParams& params) {
  if (warp::lane() < 8)
    params.memory[0] = warp::shuffle(1u, 0);
  else
    params.memory[1] = warp::shuffle(2u, 9);
}

TOKENYARD_DEVICE void leaves_itself_out_body(const MisuseParams&) {
  if (warp::lane() == 5) warp::sync(0x1);
}

TOKENYARD_DEVICE void names_an_ended_lane_body(const MisuseParams&) {
  if (warp::lane() < 4) return;
  warp::sync();
}

TOKENYARD_DEVICE void ends_while_awaited_body(const MisuseParams&) {
  if (warp::lane() != 31) warp::sync();
}

TOKENYARD_DEVICE void different_counts_body(const MisuseParams&) {
  NamedBarrier(MisuseBarrier::one).sync(warp::index() == 0 ? 64 : 96);
}

TOKENYARD_DEVICE void odd_count_body(const MisuseParams&) {
  NamedBarrier(MisuseBarrier::one).sync(40);
}

TOKENYARD_DEVICE void no_such_barrier_body(const MisuseParams&) {
  NamedBarrier(MisuseBarrier::sixteen).sync(32);
}

TOKENYARD_DEVICE void vote_or_sync_body(const MisuseParams&) {
  if (warp::index() == 0)
    block::sync();
  else
    block::any(true);
}

TOKENYARD_DEVICE void sync_after_an_end_body(const MisuseParams&) {
  if (warp::index() == 1) return;
  block::sync();
}

/// Correct: a thread that only arrives may then end.
TOKENYARD_DEVICE void arrives_and_ends_body(const MisuseParams& params) {
  if (warp::index() == 0) {
    params.memory[thread::index()] = 1 + thread::index();
    NamedBarrier(MisuseBarrier::one).arrive(64);
    return;
  }
  NamedBarrier(MisuseBarrier::one).sync(64);
  params.memory[thread::index()] = params.memory[thread::index() - 32];
}

TOKENYARD_DEVICE void misaligned_body(const MisuseParams& params) {
  auto* odd = reinterpret_cast<uint64_t*>(params.memory + 1);
  load<Order::relaxed, Scope::gpu>(odd);
}

TOKENYARD_DEVICE void misaligned_vector_body(const MisuseParams& params) {
  store_vector(reinterpret_cast<Bytes16*>(params.memory + 1), Bytes16{});
}

struct CompletionShared {
  alignas(16) std::byte bytes[64];
  Completion completion;
};

TOKENYARD_DEVICE void completion_without_init_body(const MisuseParams&) {
  block::shared<CompletionShared>().completion.arrive();
}

TOKENYARD_DEVICE void odd_copy_body(const MisuseParams& params) {
  auto& shared = block::shared<CompletionShared>();
  if (thread::index() == 0) bulk::store(params.memory, shared.bytes, 24);
}

/// Block 0 waits for block 1 in vain: the two warps of block 1 wait at different barriers.
TOKENYARD_DEVICE void stuck_block_body(const MisuseParams& params) {
  if (block::index() == 1) {
    if (warp::index() == 0) block::sync();
    if (warp::index() == 1) NamedBarrier(MisuseBarrier::one).sync(64);
    store<Order::release, Scope::gpu>(params.memory, 1u);
    return;
  }
  Awaited what{.phase = 2, .rank = 0, .expected = 1};
  const Deadline deadline = params.wait_context.start();
  wait_until(deadline, what, [&] {
    what.seen = load<Order::acquire, Scope::gpu>(params.memory);
    return what.seen == what.expected;
  });
}

/// Uses up its stack a little at a time.
[[gnu::noinline]] inline uint32_t dig(uint32_t depth) {
  volatile uint32_t here[64];
  here[depth % 64] = depth;
  block::sync();  // The executor checks a fiber's stack when the fiber stops.
  return depth == 0 ? 0 : dig(depth - 1) + here[depth % 64];
}
TOKENYARD_DEVICE void digs_too_deep_body(const MisuseParams& params) {
  params.memory[thread::index()] = dig(100'000);
}

TOKENYARD_DEFINE_HOST_KERNEL(different_words, different_words_body, MisuseParams, NoShared, 32)
TOKENYARD_DEFINE_HOST_KERNEL(different_masks, different_masks_body, MisuseParams, NoShared, 32)
TOKENYARD_DEFINE_HOST_KERNEL(different_places, different_places_body, MisuseParams, NoShared, 32)
TOKENYARD_DEFINE_HOST_KERNEL(leaves_itself_out, leaves_itself_out_body, MisuseParams, NoShared, 32)
TOKENYARD_DEFINE_HOST_KERNEL(names_an_ended_lane, names_an_ended_lane_body, MisuseParams, NoShared,
                             32)
TOKENYARD_DEFINE_HOST_KERNEL(ends_while_awaited, ends_while_awaited_body, MisuseParams, NoShared,
                             32)
TOKENYARD_DEFINE_HOST_KERNEL(different_counts, different_counts_body, MisuseParams, NoShared, 96)
TOKENYARD_DEFINE_HOST_KERNEL(odd_count, odd_count_body, MisuseParams, NoShared, 96)
TOKENYARD_DEFINE_HOST_KERNEL(no_such_barrier, no_such_barrier_body, MisuseParams, NoShared, 64)
TOKENYARD_DEFINE_HOST_KERNEL(vote_or_sync, vote_or_sync_body, MisuseParams, NoShared, 64)
TOKENYARD_DEFINE_HOST_KERNEL(sync_after_an_end, sync_after_an_end_body, MisuseParams, NoShared, 64)
TOKENYARD_DEFINE_HOST_KERNEL(arrives_and_ends, arrives_and_ends_body, MisuseParams, NoShared, 64)
TOKENYARD_DEFINE_HOST_KERNEL(misaligned, misaligned_body, MisuseParams, NoShared, 32)
TOKENYARD_DEFINE_HOST_KERNEL(misaligned_vector, misaligned_vector_body, MisuseParams, NoShared, 32)
TOKENYARD_DEFINE_HOST_KERNEL(completion_without_init, completion_without_init_body, MisuseParams,
                             CompletionShared, 32)
TOKENYARD_DEFINE_HOST_KERNEL(odd_copy, odd_copy_body, MisuseParams, CompletionShared, 32)
TOKENYARD_DEFINE_HOST_KERNEL(stuck_block, stuck_block_body, MisuseParams, NoShared, 64)
TOKENYARD_DEFINE_HOST_KERNEL(digs_too_deep, digs_too_deep_body, MisuseParams, NoShared, 32)

}  // namespace tokenyard::testing
