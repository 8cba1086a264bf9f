/// A network card and the peers' memory on one GPU, played by blocks that copy as a thread of the
/// host commands, each time that bytes have had their turn on the modelled wire.
///
///     host: a command, then its number (release)   ->  a block of the group acquires it, blocks in
///                                                      turn, and copies
///     once the group's command before has ended: the block stores the command's word (release,
///     sys), and shows the host that the command is done
#pragma once

#include "device/kernel.hpp"
#include "device/memory.hpp"

namespace tokenyard::bench {

/// Copies bytes, then stores a word behind them. In memory that host and kernels share.
struct alignas(64) CardCommand {
  const std::byte* from;
  std::byte* to;
  uint64_t bytes;  ///< a multiple of 8
  void* word;      ///< null: none
  uint64_t value;
  uint32_t word_bytes;  ///< 4 or 8
  uint32_t ends;        ///< 1: the group ends
  uint32_t number;      ///< of the command in its group, from 1 on
};

inline constexpr uint32_t kCardCommands = 128;  ///< per group, under way at once
inline constexpr uint32_t kCardWarps = 16;      ///< per block

struct CardParams {
  CardCommand* commands;     ///< [groups][kCardCommands]
  uint32_t* done;            ///< [groups] commands, in memory that the host reads
  uint32_t* ended;           ///< [groups] the same, on the device; zero at first
  uint32_t blocks_of_group;  ///< neighbours
  uint64_t limit_ns;         ///< after which a block ends by itself
};

struct CardShared {
  CardCommand command;
};

TOKENYARD_DECLARE_KERNEL(card_kernel, CardParams);

}  // namespace tokenyard::bench
