#pragma once

#include "bench/networks/network_kernels.hpp"
#include "device/bulk.hpp"
#include "device/guarded_wait.hpp"

namespace tokenyard::bench {

inline constexpr uint32_t kPhase = 0;

TOKENYARD_DEVICE bool await(const PingParams& params, const Deadline& deadline, uint64_t value) {
  if (!params.spins) return await_signal(deadline, kPhase, params.peer, params.word, value);
  // Bounded by the deadline's own check, now and then.
  for (uint32_t polls = 1; load<Order::acquire, Scope::sys>(params.word) < value; ++polls)
    if (polls % (1 << 20) == 0 &&
        deadline.heed_abort({.phase = kPhase, .rank = params.peer, .expected = value}))
      return false;
  return true;
}

TOKENYARD_DEVICE bool say(const PingParams& params, const Deadline& deadline) {
  const NetworkQueue queue = params.queues.of(params.peer, params.queue);
  if (params.source.bytes == 0) return queue.signal(deadline, kPhase, params.flag, 1);
  return queue.put_and_signal(deadline, kPhase, params.target, params.source, params.flag, 1);
}

TOKENYARD_DEVICE void ping(const PingParams& params) {
  if (thread::index() != 0) return;
  const Deadline deadline = params.wait_context.start();
  for (uint32_t turn = 0; turn < params.turns; ++turn) {
    const uint64_t begin = now_ns();
    if (params.first && !say(params, deadline)) return;
    if (!await(params, deadline, params.seen + turn + 1)) return;
    if (!params.first && !say(params, deadline)) return;
    if (params.first) params.took_ns[turn] = now_ns() - begin;
  }
}

/// Posts requests to rank 1, a queue per warp, as fast as its ring takes them, or one at a time.
TOKENYARD_DEVICE void post_requests(const RequestsParams& params) {
  if (!warp::elect()) return;
  const Deadline deadline = params.wait_context.start();
  const uint32_t warp = block::index() * warp::count() + warp::index();
  const NetworkQueue queue = params.queues.of(1, warp);
  const uint64_t begin = now_ns(), bytes = 0;
  for (uint32_t number = 0; number < params.count; ++number)
    if (!queue.put_inline(deadline, kPhase, {}, &bytes, sizeof bytes) ||
        (params.flushes_each && !queue.flush(deadline, kPhase)))
      return;
  if (!queue.flush(deadline, kPhase)) return;
  params.begun_ns[warp] = begin;
  params.ended_ns[warp] = now_ns();
}

/// Copies rows by bulk loads and stores, a row at a time per warp.
TOKENYARD_DEVICE void copy_rows(const CopyParams& params) {
  auto& shared = block::shared<CopyShared>();
  if (thread::index() < warp::count()) shared.full[thread::index()].init(1);
  fence_async_shared();
  block::sync();
  if (!warp::elect()) return;
  std::byte* const stage =
      block::shared_tail<CopyShared>() + size_t{warp::index()} * params.row_bytes;
  Completion& full = shared.full[warp::index()];
  const uint32_t warps = grid::blocks() * warp::count();
  uint32_t loads = 0;
  for (uint32_t row = block::index() * warp::count() + warp::index(); row < params.rows;
       row += warps, ++loads) {
    full.arrive_expect(params.row_bytes);
    bulk::load(stage, params.from + size_t{row} * params.row_bytes, params.row_bytes, full);
    Awaited what{.phase = kPhase};
    wait_until(
        what, [&] { return full.done(loads & 1); }, [] { return true; });
    bulk::store(params.to + size_t{row} * params.row_bytes, stage, params.row_bytes);
    bulk::commit();
    bulk::wait_read<0>();
  }
  bulk::wait<0>();
}

TOKENYARD_DEFINE_KERNEL(ping_kernel, ping, PingParams, NoShared, 32)
TOKENYARD_DEFINE_KERNEL(requests_kernel, post_requests, RequestsParams, NoShared, 1024)
TOKENYARD_DEFINE_KERNEL(copy_kernel, copy_rows, CopyParams, CopyShared, kCopyWarps * 32)

}  // namespace tokenyard::bench
