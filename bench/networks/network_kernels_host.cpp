#include "bench/networks/network_kernels.hpp"

namespace tokenyard::bench {
namespace {

constexpr uint32_t kPhase = 0;

TOKENYARD_DEVICE bool await(const PingParams& params, const Deadline& deadline, uint64_t value) {
  if (!params.spins) return await_signal(deadline, kPhase, params.peer, params.word, value);
  // Bounded by the deadline's own check, now and then.
  for (uint32_t polls = 1; load<Order::acquire, Scope::sys>(params.word) < value; ++polls)
    if (polls % (1 << 20) == 0 &&
        deadline.heed_abort({.phase = kPhase, .rank = params.peer, .expected = value}))
      return false;
  return true;
}

TOKENYARD_DEVICE bool say(const PingParams& params, const Deadline& deadline, bool puts) {
  const NetworkQueue queue = params.queues.of(params.peer, 0);
  if (puts && params.source.bytes != 0 &&
      !queue.put(deadline, kPhase, params.target, params.source))
    return false;
  return queue.signal(deadline, kPhase, params.flag, 1);
}

TOKENYARD_DEVICE void ping(const PingParams& params) {
  if (thread::index() != 0) return;
  const Deadline deadline = params.wait_context.start();
  for (uint32_t turn = 0; turn < params.turns; ++turn) {
    const uint64_t begin = now_ns();
    if (params.first && !say(params, deadline, true)) return;
    if (!await(params, deadline, params.seen + turn + 1)) return;
    if (!params.first && !say(params, deadline, true)) return;
    if (params.first) params.took_ns[turn] = now_ns() - begin;
  }
}

/// Posts requests to the queue of rank 1, as fast as its ring takes them.
TOKENYARD_DEVICE void post_requests(const RequestsParams& params) {
  if (thread::index() != 0) return;
  const Deadline deadline = params.wait_context.start();
  const NetworkQueue queue = params.queues.of(1, 0);
  const uint64_t begin = now_ns(), bytes = 0;
  for (uint32_t number = 0; number < params.count; ++number)
    if (!queue.put_inline(deadline, kPhase, {}, &bytes, sizeof bytes)) return;
  if (!queue.flush(deadline, kPhase)) return;
  *params.took_ns = now_ns() - begin;
}

}  // namespace

TOKENYARD_DEFINE_HOST_KERNEL(ping_kernel, ping, PingParams, NoShared, 32)
TOKENYARD_DEFINE_HOST_KERNEL(requests_kernel, post_requests, RequestsParams, NoShared, 32)

}  // namespace tokenyard::bench
