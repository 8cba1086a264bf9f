/// Kernels that use every kind of memory access, and record what they read.
#pragma once

#include "device/device.hpp"

namespace tokenyard::testing {

struct MemoryCells {
  uint8_t one;
  uint16_t two;
  uint32_t four;
  uint64_t eight;
  Bytes16 sixteen;
  Stamped stamped;
};
struct MemoryParams {
  MemoryCells* cells;   ///< written by the kernel
  MemoryCells* echoed;  ///< values that it read back
};

template <Order stored, Order loaded, Scope scope>
TOKENYARD_DEVICE void echo(const MemoryParams& params, uint32_t at) {
  MemoryCells& cells = params.cells[at];
  MemoryCells& echoed = params.echoed[at];
  const Peer<MemoryCells> peer(&cells);
  store<stored, scope>(&cells.one, static_cast<uint8_t>(0xa1 + at));
  store<stored, scope>(&cells.two, static_cast<uint16_t>(0xa102 + at));
  store<stored, scope>(&cells.four, 0xa1020304 + at);
  store<stored, scope>(&cells.eight, 0xa102030405060708 + at);
  store<stored, scope>(peer.at(&MemoryCells::stamped), Stamped{at, 17});
  echoed.one = load<loaded, scope>(&cells.one);
  echoed.two = load<loaded, scope>(&cells.two);
  echoed.four = load<loaded, scope>(peer.at(&MemoryCells::four));
  echoed.eight = load<loaded, scope>(&cells.eight);
  echoed.stamped = load<loaded, scope>(&cells.stamped);
}

TOKENYARD_DEVICE void memory_body(const MemoryParams& params) {
  if (thread::index() != 0) return;
  echo<Order::relaxed, Order::relaxed, Scope::block>(params, 0);
  echo<Order::release, Order::acquire, Scope::block>(params, 1);
  echo<Order::relaxed, Order::acquire, Scope::gpu>(params, 2);
  echo<Order::release, Order::relaxed, Scope::gpu>(params, 3);
  echo<Order::relaxed, Order::relaxed, Scope::sys>(params, 4);
  echo<Order::release, Order::acquire, Scope::sys>(params, 5);
  // 16-byte accesses are atomic only if they are at least relaxed.
  store<Order::relaxed, Scope::sys>(&params.cells[0].sixteen, Bytes16{{1, 2, 3, 4}});
  fence<Scope::gpu>();
  fence_acquire<Scope::gpu>();
  fence_release<Scope::sys>();
  fence_sequential<Scope::sys>();
  params.echoed[0].sixteen = load<Order::relaxed, Scope::sys>(&params.cells[0].sixteen);
}

struct Counters {
  uint32_t added, largest, smallest, any_bits, all_bits, swapped, taken, reduced;
  int32_t signed_largest, signed_smallest;
  uint64_t wide;
};
struct ModifyParams {
  Counters* counters;
  uint32_t* tickets;    ///< [blocks * threads] each thread's result of fetch_add
  uint32_t* exchanged;  ///< [blocks * threads] each thread's result of exchange
  uint32_t* won;        ///< [blocks * threads] 1 if the thread's compare_exchange succeeded
};

TOKENYARD_DEVICE void modify_body(const ModifyParams& params) {
  Counters& counters = *params.counters;
  const uint32_t me = block::index() * block::threads() + thread::index();
  params.tickets[me] = fetch_add<Order::relaxed, Scope::gpu>(&counters.added, 1u);
  params.exchanged[me] = exchange<Order::acq_rel, Scope::gpu>(&counters.swapped, me + 1);
  params.won[me] = compare_exchange<Order::relaxed, Scope::sys>(&counters.taken, 0u, me + 1) == 0;
  fetch_max<Order::relaxed, Scope::gpu>(&counters.largest, me);
  fetch_min<Order::relaxed, Scope::gpu>(&counters.smallest, me + 5);
  fetch_max<Order::relaxed, Scope::gpu>(&counters.signed_largest, static_cast<int32_t>(me) - 9);
  fetch_min<Order::relaxed, Scope::gpu>(&counters.signed_smallest, -static_cast<int32_t>(me));
  fetch_or<Order::release, Scope::gpu>(&counters.any_bits, 1u << me % 32);
  fetch_and<Order::acquire, Scope::gpu>(&counters.all_bits, ~(1u << me % 8));
  fetch_add<Order::acq_rel, Scope::sys>(Peer<uint64_t>(&counters.wide), uint64_t{1} << 33);
  add<Order::release, Scope::sys>(Peer<uint32_t>(&counters.reduced), 3u);
}

struct VectorParams {
  const Bytes16* from;   ///< [5]
  Bytes16* to;           ///< [5] copies by every Cache, and through a Peer
  const uint64_t* wide;  ///< [1]
  uint64_t* wide_to;     ///< [1]
};

TOKENYARD_DEVICE void vector_body(const VectorParams& params) {
  if (thread::index() != 0) return;
  store_vector(params.to + 0, load_vector(params.from + 0));
  store_vector<Cache::streaming>(params.to + 1, load_vector<Cache::read_only>(params.from + 1));
  store_vector<Cache::level2>(params.to + 2, load_vector<Cache::streaming>(params.from + 2));
  store_vector(params.to + 3, load_vector<Cache::level2>(params.from + 3));
  store_vector(Peer<Bytes16>(params.to + 4), load_vector(Peer<const Bytes16>(params.from + 4)));
  *params.wide_to = load_cached(params.wide);
}

inline constexpr uint32_t kPieceBytes = 512;

struct BulkShared {
  alignas(128) std::byte piece[2][kPieceBytes];
  Completion full[2];
};
struct BulkParams {
  uint32_t pieces;
  const std::byte* from;  ///< [pieces * kPieceBytes]
  std::byte* to;          ///< [pieces * kPieceBytes] every byte of `from` plus one
  WaitContext wait_context;
};

/// One thread copies each piece in and out, with two in flight; in between, all threads change it.
TOKENYARD_DEVICE void bulk_body(const BulkParams& params) {
  auto& shared = block::shared<BulkShared>();
  const Deadline deadline = params.wait_context.start();
  const bool copies = thread::index() == 0;
  if (copies) {
    for (Completion& full : shared.full) full.init(1);
    fence_async();
  }
  block::sync();
  const auto fetch = [&](uint32_t piece) {
    Completion& full = shared.full[piece % 2];
    full.arrive_expect(kPieceBytes);
    bulk::load(shared.piece[piece % 2], params.from + piece * kPieceBytes, kPieceBytes, full,
               evict_first());
  };
  if (copies) fetch(0);
  for (uint32_t piece = 0; piece < params.pieces; ++piece) {
    Completion& full = shared.full[piece % 2];
    Awaited what{.phase = piece};
    wait_until(deadline, what, [&] { return full.done(piece / 2 % 2); });
    for (uint32_t i = thread::index(); i < kPieceBytes; i += block::threads()) {
      std::byte& byte = shared.piece[piece % 2][i];
      byte = static_cast<std::byte>(static_cast<uint32_t>(byte) + 1);
    }
    fence_async();
    block::sync();
    if (copies) {
      bulk::store(Peer<std::byte>(params.to + piece * kPieceBytes), shared.piece[piece % 2],
                  kPieceBytes);
      bulk::commit();
      bulk::wait_read<1>();  // The next piece overwrites the source of the previous one.
      if (piece + 1 < params.pieces) fetch(piece + 1);
    }
  }
  if (copies) bulk::wait<0>();
}

TOKENYARD_DEFINE_KERNEL(memory_kernel, memory_body, MemoryParams, NoShared, 32)
TOKENYARD_DEFINE_KERNEL(modify_kernel, modify_body, ModifyParams, NoShared, 64)
TOKENYARD_DEFINE_KERNEL(vector_kernel, vector_body, VectorParams, NoShared, 32)
TOKENYARD_DEFINE_KERNEL(bulk_kernel, bulk_body, BulkParams, BulkShared, 64)

}  // namespace tokenyard::testing
