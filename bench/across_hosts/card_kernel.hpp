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

/// Called by the whole block.
TOKENYARD_DEVICE void copy(const CardCommand& command) {
  constexpr uint32_t kAtOnce = 8;
  const bool wide = (reinterpret_cast<uintptr_t>(command.from) |
                     reinterpret_cast<uintptr_t>(command.to) | command.bytes) %
                        sizeof(Bytes16) ==
                    0;
  const uint32_t first = thread::index(), stride = block::threads();
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
  for (uint32_t number = 1 + block::index() % params.blocks_of_group;;
       number += params.blocks_of_group) {
    if (thread::index() == 0) shared.command = await_command(params, group, number, begun_ns);
    block::sync();
    const CardCommand command = shared.command;
    if (command.ends != 0) return;
    copy(command);
    block::sync();
    if (thread::index() != 0) continue;
    // Releases the copies, before this block's turn: a release in turn would hold up the group.
    fence<Scope::sys>();
    // Acquires the words before, whose copies this one stands for, too.
    while (load<Order::acquire, Scope::gpu>(params.ended + group) != number - 1)
      if (now_ns() - begun_ns > params.limit_ns) return;
    if (command.word != nullptr && command.word_bytes == 4)
      store<Order::relaxed, Scope::sys>(Peer<uint32_t>(static_cast<uint32_t*>(command.word)),
                                        static_cast<uint32_t>(command.value));
    else if (command.word != nullptr)
      store<Order::relaxed, Scope::sys>(Peer<uint64_t>(static_cast<uint64_t*>(command.word)),
                                        command.value);
    store<Order::relaxed, Scope::sys>(params.done + group, number);
    // Release: behind the words.
    store<Order::release, Scope::gpu>(params.ended + group, number);
  }
}

TOKENYARD_DEFINE_KERNEL(card_kernel, play_card, CardParams, CardShared, kCardWarps* kWarpLanes)

}  // namespace tokenyard::bench
