#pragma once

#include <algorithm>

#include "bench/across_hosts/card.hpp"
#include "device/device.hpp"
#include "device/unroll.hpp"

namespace tokenyard::bench {

/// Waits for a command; one that ends the group stands for none in time. Called by one thread.
TOKENYARD_DEVICE CardCommand await_command(const CardParams& params, uint32_t group,
                                           uint32_t number, uint64_t begun_ns) {
  CardCommand& from = params.commands[group * kCardCommands + number % kCardCommands];
  // Acquires the command, and the bytes that it names. Bounded by its own clock.
  while (load<Order::acquire, Scope::sys>(&from.number) != number)
    if (now_ns() - begun_ns > params.limit_ns)
      return {.from = nullptr,
              .to = nullptr,
              .bytes = 0,
              .word = nullptr,
              .value = 0,
              .word_bytes = 0,
              .ends = 1,
              .number = number};
  return from;
}

/// Copies a block's part of a command. Called by the whole block.
TOKENYARD_DEVICE void copy_part(const CardCommand& command, uint32_t part, uint32_t parts) {
  constexpr uint32_t kAtOnce = 8;
  const bool wide = (reinterpret_cast<uintptr_t>(command.from) |
                     reinterpret_cast<uintptr_t>(command.to) | command.bytes) %
                        sizeof(Bytes16) ==
                    0;
  const auto first = part * block::threads() + thread::index(), stride = parts * block::threads();
  if (!wide) {
    // Relaxed: words that others poll, each whole.
    for (uint64_t i = first; i < command.bytes / sizeof(uint64_t); i += stride)
      store<Order::relaxed, Scope::sys>(Peer<uint64_t>(reinterpret_cast<uint64_t*>(command.to) + i),
                                        reinterpret_cast<const uint64_t*>(command.from)[i]);
    return;
  }
  const auto* const from = reinterpret_cast<const Bytes16*>(command.from);
  auto* const to = reinterpret_cast<Bytes16*>(command.to);
  const uint64_t all = command.bytes / sizeof(Bytes16);
  for (uint64_t i = first; i < all; i += kAtOnce * stride) {
    Bytes16 values[kAtOnce];
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < kAtOnce; ++k)
      if (i + k * stride < all) values[k] = load_vector(from + i + k * stride);
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < kAtOnce; ++k)
      if (i + k * stride < all) store_vector(to + i + k * stride, values[k]);
  }
}

TOKENYARD_DEVICE void play_card(const CardParams& params) {
  auto& shared = block::shared<CardShared>();
  const uint64_t begun_ns = now_ns();
  const uint32_t group = block::index() / params.blocks_of_group;
  const uint32_t part = block::index() % params.blocks_of_group;
  for (uint32_t number = 1;; ++number) {
    if (thread::index() == 0) shared.command = await_command(params, group, number, begun_ns);
    block::sync();
    const CardCommand command = shared.command;
    if (command.ends != 0) return;
    copy_part(command, part, params.blocks_of_group);
    block::sync();
    if (thread::index() != 0) continue;
    // acq_rel: the last block of the group passes the other blocks' copies on.
    const uint32_t copied = fetch_add<Order::acq_rel, Scope::gpu>(params.parts + group, 1);
    if (copied + 1 != number * params.blocks_of_group) continue;
    // Release: behind the copies.
    if (command.word != nullptr && command.word_bytes == 4)
      store<Order::release, Scope::sys>(Peer<uint32_t>(static_cast<uint32_t*>(command.word)),
                                        static_cast<uint32_t>(command.value));
    else if (command.word != nullptr)
      store<Order::release, Scope::sys>(Peer<uint64_t>(static_cast<uint64_t*>(command.word)),
                                        command.value);
    store<Order::release, Scope::sys>(params.done + group, number);
  }
}

TOKENYARD_DEFINE_KERNEL(card_kernel, play_card, CardParams, CardShared, kCardWarps* kWarpLanes)

}  // namespace tokenyard::bench
