/// The kernel, in the words of device/.
#pragma once

#include "device/device.hpp"
#include "device/sass/put_signal.hpp"

namespace tokenyard::testing {

struct PutSignalShared {
  alignas(128) std::byte row[kRowBytes];
  Completion arrived;
  uint32_t sum;
};

TOKENYARD_DEVICE void put_rows(const PutSignalParams& params, const Deadline& deadline) {
  auto& shared = block::shared<PutSignalShared>();
  const Peer<std::byte> to(params.peer_rows);
  for (uint32_t turn = 0;; ++turn) {
    const uint32_t row = fetch_add<Order::relaxed, Scope::gpu>(params.tickets, 1);
    if (row >= params.count) break;
    shared.arrived.arrive_expect(kRowBytes);
    bulk::load(shared.row, params.rows + row * kRowBytes, kRowBytes, shared.arrived, evict_first());
    Awaited what{.phase = 1, .rank = 0, .expected = row};
    if (!wait_until(deadline, what, [&] { return shared.arrived.done(turn & 1); })) return;
    bulk::store(to + row * kRowBytes, shared.row, kRowBytes);
    bulk::commit();
    bulk::wait_read<0>();
  }
  bulk::wait<0>();
  add<Order::release, Scope::sys>(Peer<uint64_t>(params.peer_signal), 1);
}

TOKENYARD_DEVICE void sum_rows(const PutSignalParams& params, const Deadline& deadline) {
  auto& shared = block::shared<PutSignalShared>();
  Awaited what{.phase = 2, .rank = 1, .expected = params.epoch};
  wait_until(deadline, what, [&] {
    what.seen = load<Order::acquire, Scope::sys>(params.my_signal);
    return what.seen >= what.expected;
  });
  uint32_t sum = 0;
  const auto* pieces = reinterpret_cast<const Bytes16*>(params.my_rows);
  for (uint32_t at = thread::index(); at < params.count * kRowBytes / 16; at += block::threads()) {
    const Bytes16 piece = load_vector<Cache::level2>(pieces + at);
    sum += piece.word[0] ^ piece.word[1] ^ piece.word[2] ^ piece.word[3];
  }
  sum = warp::sum(sum);
  if (warp::elect()) add<Order::relaxed, Scope::block>(&shared.sum, sum);
}

TOKENYARD_DEVICE void put_signal(const PutSignalParams& params) {
  auto& shared = block::shared<PutSignalShared>();
  const Deadline deadline = params.wait_context.start();
  if (thread::index() == 0) {
    shared.arrived.init(1);
    shared.sum = 0;
    fence_async();
  }
  block::sync();
  if (thread::index() == 0) put_rows(params, deadline);
  sum_rows(params, deadline);
  block::sync();
  if (thread::index() == 0)
    store<Order::relaxed, Scope::gpu>(params.sums + block::index(), shared.sum);
}

}  // namespace tokenyard::testing

__global__ void __launch_bounds__(256, 1)
    put_signal_kernel(const __grid_constant__ tokenyard::testing::PutSignalParams params) {
  tokenyard::testing::put_signal(params);
}
