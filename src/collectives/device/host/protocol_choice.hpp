/// The protocol of a call and the division of its bytes, chosen from what all ranks know alike.
#pragma once

#include <cstdint>

#include "collectives/device/host/device_collectives.hpp"
#include "collectives/device/kernels/movement.hpp"
#include "collectives/device/kernels/window.hpp"

namespace tokenyard::device_collectives {

/// Returns the protocol of a call whose options leave it open: slots for messages that fit into
/// them, packets for those that fit into these, else from tensor to tensor if all lie in arenas,
/// else rings.
Protocol chosen_protocol(const Movement& movement, const Options& options, uint32_t ranks);

/// Returns the bytes of the largest message in packets.
uint32_t packet_bytes(const Options& options, uint32_t ranks);

/// Returns the rings of each window.
RingLayout ring_layout(const Options& options, uint32_t ranks);

/// Returns the places of a channel for messages of one rank to another.
uint32_t channel_places(const Options& options, uint32_t ranks);

/// Returns the bytes of a chunk of a message of `bytes` in rings, at most `most`; alike on all
/// ranks, whatever multiprocessors each of them uses.
uint32_t ring_chunk_bytes(uint64_t bytes, uint32_t most);

/// Returns the bytes that one of `warps` claims at a time of the `bytes` that a rank copies or
/// folds from tensor to tensor, at most `most`.
uint32_t direct_chunk_bytes(uint64_t bytes, bool folds, uint32_t warps, uint32_t most);

}  // namespace tokenyard::device_collectives
