/// The smallest exchange, in every right way and in many wrong ones: each rank puts a message into
/// its neighbour's memory, signals, waits for its own message and copies it out.
#pragma once

#include "device/device.hpp"

namespace tokenyard {

/// The ways to put, publish and copy out the message. Those from `relaxed_signal` on are wrong.
enum class PutSignal : uint32_t {
  release,      ///< weak stores, block barrier, one thread's release store
  fence,        ///< as `release`, but with a fence and a relaxed store
  release_add,  ///< as `release`, but with a reduction
  bulk_store,   ///< staged in shared memory, and put by a bulk store
  bulk_load,    ///< copied out by a bulk load
  relaxed_signal,
  gpu_scope_signal,
  gpu_scope_fence,
  relaxed_wait,
  no_barrier_before_signal,
  no_barrier_after_wait,
  bulk_store_without_proxy_fence,
  bulk_store_not_awaited,
  bulk_load_without_proxy_fence,
  bulk_load_not_awaited,
};
inline constexpr uint32_t kPutSignals = 15;
inline constexpr uint32_t kPutSignalWordsMax = 64;

struct PutSignalParams {
  PutSignal how;
  uint32_t rank, target;        ///< this rank, and the rank that receives its message
  uint32_t words;               ///< length of the message: even, at most kPutSignalWordsMax
  uint32_t epoch;               ///< of the call
  PeerArray<std::byte> arenas;  ///< hold a message at offset `data`, and its epoch at `flag`
  uint64_t data, flag;
  uint64_t* out;  ///< [words]
  WaitContext wait_context;
};

struct PutSignalShared {
  alignas(128) uint64_t staged[kPutSignalWordsMax];
  alignas(128) uint64_t loaded[kPutSignalWordsMax];
  Completion completion;
};

/// Returns a word of a rank's message in a call.
TOKENYARD_HOST_DEVICE uint64_t put_signal_word(uint32_t rank, uint32_t epoch, uint32_t index) {
  return (uint64_t{rank} + 1) << 40 | uint64_t{epoch} << 20 | (index + 1);
}

TOKENYARD_DEVICE bool one_of(PutSignal how, PutSignal a, PutSignal b) {
  return how == a || how == b;
}

TOKENYARD_DEVICE void put_by_stores(const PutSignalParams& params) {
  const auto target = (params.arenas.of(params.target) + params.data).as<uint64_t>();
  for (uint32_t index = thread::index(); index < params.words; index += block::threads())
    store<Order::weak, Scope::sys>(target + index,
                                   put_signal_word(params.rank, params.epoch, index));
}

TOKENYARD_DEVICE void put_by_bulk(const PutSignalParams& params, PutSignalShared& shared) {
  for (uint32_t index = thread::index(); index < params.words; index += block::threads())
    shared.staged[index] = put_signal_word(params.rank, params.epoch, index);
  if (params.how != PutSignal::bulk_store_without_proxy_fence) fence_async();
  block::sync();
  if (thread::index() != 0) return;
  bulk::store(params.arenas.of(params.target) + params.data, shared.staged,
              params.words * sizeof(uint64_t));
  bulk::commit();
  if (params.how == PutSignal::bulk_store_not_awaited)
    bulk::wait_read<0>();
  else
    bulk::wait<0>();
}

TOKENYARD_DEVICE void signal(const PutSignalParams& params) {
  const auto flag = (params.arenas.of(params.target) + params.flag).as<uint32_t>();
  switch (params.how) {
    case PutSignal::fence:
      fence<Scope::sys>();
      store<Order::relaxed, Scope::sys>(flag, params.epoch);
      break;
    case PutSignal::gpu_scope_fence:
      fence<Scope::gpu>();
      store<Order::relaxed, Scope::sys>(flag, params.epoch);
      break;
    case PutSignal::release_add:
      add<Order::release, Scope::sys>(flag, 1);
      break;
    case PutSignal::relaxed_signal:
      store<Order::relaxed, Scope::sys>(flag, params.epoch);
      break;
    case PutSignal::gpu_scope_signal:
      store<Order::release, Scope::gpu>(flag, params.epoch);
      break;
    default:
      store<Order::release, Scope::sys>(flag, params.epoch);
      break;
  }
}

TOKENYARD_DEVICE void await_signal(const PutSignalParams& params, const Deadline& deadline) {
  const auto* const flag = reinterpret_cast<const uint32_t*>(params.arenas.mine() + params.flag);
  Awaited what{.phase = 0, .rank = params.rank, .expected = params.epoch, .seen = 0};
  wait_until(deadline, what, [&] {
    what.seen = params.how == PutSignal::relaxed_wait ? load<Order::relaxed, Scope::sys>(flag)
                                                      : load<Order::acquire, Scope::sys>(flag);
    return what.seen == params.epoch;
  });
}

TOKENYARD_DEVICE void take_by_bulk(const PutSignalParams& params, PutSignalShared& shared) {
  if (thread::index() == 0) {
    if (params.how != PutSignal::bulk_load_without_proxy_fence) fence_async();
    const uint32_t bytes = params.words * static_cast<uint32_t>(sizeof(uint64_t));
    shared.completion.arrive_expect(bytes);
    bulk::load(shared.loaded, params.arenas.mine() + params.data, bytes, shared.completion);
  }
  // A copy from this rank's own memory always ends, even if other ranks die, and must not outlive
  // the block that it writes into, so this wait has neither a deadline nor an abort flag.
  if (params.how != PutSignal::bulk_load_not_awaited || thread::index() == 0)
    while (!shared.completion.done(0)) nap(100);
  for (uint32_t index = thread::index(); index < params.words; index += block::threads())
    params.out[index] = shared.loaded[index];
}

TOKENYARD_DEVICE void take_by_loads(const PutSignalParams& params) {
  const auto* const data = reinterpret_cast<const uint64_t*>(params.arenas.mine() + params.data);
  for (uint32_t index = thread::index(); index < params.words; index += block::threads())
    params.out[index] = data[index];
}

TOKENYARD_DEVICE void put_signal(const PutSignalParams& params) {
  auto& shared = block::shared<PutSignalShared>();
  const PutSignal how = params.how;
  const Deadline deadline = params.wait_context.start();
  if (thread::index() == 0) {
    shared.completion.init(1);
    fence_async();
  }
  const bool by_bulk = one_of(how, PutSignal::bulk_store, PutSignal::bulk_store_not_awaited) ||
                       how == PutSignal::bulk_store_without_proxy_fence;
  if (by_bulk)
    put_by_bulk(params, shared);
  else
    put_by_stores(params);
  if (how != PutSignal::no_barrier_before_signal) block::sync();
  if (thread::index() == 0) {
    signal(params);
    await_signal(params, deadline);
  }
  if (how != PutSignal::no_barrier_after_wait) block::sync();
  if (deadline.failed()) return;  // There is no message to copy out.
  if (one_of(how, PutSignal::bulk_load, PutSignal::bulk_load_not_awaited) ||
      how == PutSignal::bulk_load_without_proxy_fence)
    take_by_bulk(params, shared);
  else
    take_by_loads(params);
}

}  // namespace tokenyard
