/// The kernel that restores an array. See restore.hpp.
#pragma once

#include <algorithm>

#include "collectives/device/kernels/pieces.hpp"
#include "collectives/device/kernels/restore.hpp"
#include "device/device.hpp"

namespace tokenyard::device_collectives {

/// The launch before it in the stream has ended, so whatever failed is known.
TOKENYARD_DEVICE void restore(const RestoreParams& params) {
  if (load<Order::relaxed, Scope::gpu>(params.failed) == 0) return;
  const uint64_t threads = uint64_t{block::threads()} * grid::blocks();
  for (uint64_t piece = uint64_t{block::index()} * block::threads() + thread::index();
       piece * Piece16::kBytes < params.bytes; piece += threads) {
    const uint64_t at = piece * Piece16::kBytes;
    const auto bytes =
        static_cast<uint32_t>(std::min<uint64_t>(Piece16::kBytes, params.bytes - at));
    store_piece(params.tensor + at, load_piece<4>(params.kept + at, bytes), bytes);
  }
}

TOKENYARD_DEFINE_KERNEL(restore_kernel, restore, RestoreParams, NoShared, kRestoreThreadsMax)

}  // namespace tokenyard::device_collectives
