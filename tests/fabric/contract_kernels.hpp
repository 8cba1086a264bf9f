/// Exercises a fabric with load/store: words stored to peers, bulk copies, counters, and the order
/// between data and the flag that publishes it.
#pragma once

#include "device/device.hpp"

namespace tokenyard::testing {

inline constexpr uint32_t kContractRanks = 16;  ///< at most
inline constexpr uint32_t kRowWords = 64;

/// A rank's memory in its arena that peers write. Two buffers by parity of the epoch suffice: a
/// rank that writes epoch e + 2 has received every peer's flag of e + 1, which the peer began only
/// after it had read its buffer of e.
struct ContractWindow {
  struct Buffer {
    alignas(16) uint32_t stored[kContractRanks][kRowWords];  ///< [source rank]
    alignas(16) uint32_t copied[kContractRanks][kRowWords];
  };
  Buffer buffers[2];
  uint32_t stored_epoch[kContractRanks];
  uint32_t copied_epochs[kContractRanks];  ///< counted by signals
  uint32_t never;                          ///< never written
};

enum class ContractPhase : uint32_t { stored, copied, absent };

struct ContractParams {
  WaitContext wait_context;
  PeerArray<std::byte> arenas;
  const uint64_t* windows;  ///< [ranks] offset of each rank's ContractWindow in its arena
  uint32_t rank, ranks, epoch;
  uint32_t* wrong;  ///< number of wrong words is added to it
};

struct ContractShared {
  alignas(16) uint32_t row[kContractRanks][kRowWords];
};

TOKENYARD_DEVICE uint32_t contract_word(uint32_t from, uint32_t to, uint32_t epoch, uint32_t word) {
  return from * 0x01000193u + to * 0x00010001u + epoch * 0x9e3779b9u + word;
}

TOKENYARD_DEVICE Peer<ContractWindow> contract_window(const ContractParams& params, uint32_t rank) {
  return (params.arenas.of(rank) + static_cast<std::ptrdiff_t>(params.windows[rank]))
      .as<ContractWindow>();
}

/// Warp 0: stores a row of words to every peer, lane by lane, and then the row's flag.
TOKENYARD_DEVICE void contract_store_rows(const ContractParams& params) {
  for (uint32_t to = 0; to < params.ranks; ++to) {
    ContractWindow* const window = contract_window(params, to).address();
    uint32_t* const row = window->buffers[params.epoch % 2].stored[params.rank];
    for (uint32_t word = warp::lane(); word < kRowWords; word += kWarpLanes) {
      store<Order::weak, Scope::sys>(Peer<uint32_t>(row + word),
                                     contract_word(params.rank, to, params.epoch, word));
    }
    warp::sync();
    if (warp::elect()) {
      store<Order::release, Scope::sys>(Peer<uint32_t>(window->stored_epoch + params.rank),
                                        params.epoch);
    }
  }
}

/// Warp 1: the same by bulk copies from shared memory, published by signals.
TOKENYARD_DEVICE void contract_copy_rows(const ContractParams& params, ContractShared& shared) {
  for (uint32_t to = 0; to < params.ranks; ++to) {
    for (uint32_t word = warp::lane(); word < kRowWords; word += kWarpLanes) {
      shared.row[to][word] = ~contract_word(params.rank, to, params.epoch, word);
    }
  }
  fence_async();
  warp::sync();
  if (!warp::elect()) return;
  for (uint32_t to = 0; to < params.ranks; ++to) {
    uint32_t* const row =
        contract_window(params, to).address()->buffers[params.epoch % 2].copied[params.rank];
    bulk::store(Peer<uint32_t>(row).as<std::byte>(), shared.row[to], sizeof shared.row[to]);
  }
  bulk::commit();
  bulk::wait<0>();
  for (uint32_t to = 0; to < params.ranks; ++to) {
    uint32_t* const flag = contract_window(params, to).address()->copied_epochs + params.rank;
    add<Order::release, Scope::sys>(Peer<uint32_t>(flag), 1);
  }
}

TOKENYARD_DEVICE bool contract_await(const Deadline& deadline, ContractPhase phase, uint32_t rank,
                                     const uint32_t* flag, uint32_t expected) {
  Awaited what{.phase = static_cast<uint32_t>(phase), .rank = rank, .expected = expected};
  return wait_until(deadline, what, [&] {
    what.seen = load<Order::acquire, Scope::sys>(flag);
    return what.seen >= what.expected;
  });
}

/// Every rank writes to every rank, and checks what it received.
TOKENYARD_DEVICE void contract_exchange(const ContractParams& params) {
  const Deadline deadline = params.wait_context.start();
  ContractShared& shared = block::shared<ContractShared>();
  if (warp::index() == 0) contract_store_rows(params);
  if (warp::index() == 1) contract_copy_rows(params, shared);

  const ContractWindow& mine = *contract_window(params, params.rank).address();
  const uint32_t from = thread::index();
  if (from < params.ranks) {
    contract_await(deadline, ContractPhase::stored, from, &mine.stored_epoch[from], params.epoch);
    contract_await(deadline, ContractPhase::copied, from, &mine.copied_epochs[from], params.epoch);
  }
  block::sync();
  if (deadline.failed()) return;
  const ContractWindow::Buffer& buffer = mine.buffers[params.epoch % 2];
  uint32_t wrong = 0;
  for (uint32_t at = thread::index(); at < params.ranks * kRowWords; at += block::threads()) {
    const uint32_t origin = at / kRowWords;
    const uint32_t word = at % kRowWords;
    const uint32_t right = contract_word(origin, params.rank, params.epoch, word);
    wrong += buffer.stored[origin][word] != right;
    wrong += buffer.copied[origin][word] != ~right;
  }
  if (wrong != 0) add<Order::relaxed, Scope::gpu>(params.wrong, wrong);
}

/// Every rank but the last waits for the last one, which never sends anything.
TOKENYARD_DEVICE void contract_wait_for_nobody(const ContractParams& params) {
  const Deadline deadline = params.wait_context.start();
  if (thread::index() != 0) return;
  const ContractWindow& mine = *contract_window(params, params.rank).address();
  contract_await(deadline, ContractPhase::absent, params.ranks - 1, &mine.never, 1);
}

TOKENYARD_DEFINE_KERNEL(contract_exchange_kernel, contract_exchange, ContractParams, ContractShared,
                        64)
TOKENYARD_DEFINE_KERNEL(contract_wait_kernel, contract_wait_for_nobody, ContractParams, NoShared,
                        32)

}  // namespace tokenyard::testing
