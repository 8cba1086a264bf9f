/// The protocol of a call and the division of its bytes, chosen from what all ranks know alike.
#pragma once

#include <cstdint>

#include "collectives/device/host/device_collectives.hpp"
#include "collectives/device/kernels/movement.hpp"
#include "collectives/device/kernels/window.hpp"

namespace tokenyard::device_collectives {

/// Returns the protocol of a call whose options leave it open: slots for messages that fit into
/// them, else from tensor to tensor if all lie in arenas and nothing is reduced, else rings.
Protocol chosen_protocol(const Movement& movement, const Options& options);

/// Returns the rings of each window.
RingLayout ring_layout(const Options& options, uint32_t ranks);

/// Returns the places of a channel for messages of one rank to another.
uint32_t channel_places(const Options& options, uint32_t ranks);

/// Returns the bytes of a chunk of a message of `bytes`, at most `most`: small enough for many
/// warps to work.
uint32_t chunk_bytes_for(uint64_t bytes, uint32_t most);

}  // namespace tokenyard::device_collectives
