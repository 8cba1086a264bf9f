/// A software mlx5 card: reads the bytes that kernels write for a ConnectX
/// (device/mlx5_layout.hpp), and answers as one does. No card has been met; the bytes are those of
/// rdma-core's headers.
///
/// - Some queues' doorbell records are looked at at any time, others' only once a doorbell rings. A
///   record ahead of its entries, or a doorbell ahead of its record, shows.
/// - Each completion overwrites the one entry of the collapsed queue, errors too: once a request
/// has
///   failed, all later ones are flushed, each with an entry of its own.
/// - Requests to a rank that is gone fail, as after the last retry.
#pragma once

#include "fabric/network/nic_queue.hpp"

namespace tokenyard {

class Mlx5Front {
 public:
  static constexpr bool kMlx5 = true;

  TOKENYARD_DEVICE Mlx5Front(const NicParams& params, uint32_t queue)
      : pair_(params.mlx5_pairs[queue]),
        curious_((params.seed >> queue % 32 & 1) != 0),
        record_(params.pairs[queue]->completed) {}

  /// Returns the number of entries so far, of which `taken` have been taken.
  TOKENYARD_DEVICE uint32_t posted(uint32_t taken, uint32_t chance) {
    bool rings = false;
    for (uint32_t half = 0; half < 2; ++half) {
      // Acquires the record.
      const uint64_t doorbell =
          load<Order::acquire, Scope::sys>(&pair_.blue_flame->halves[half].doorbell);
      rings |= doorbell != doorbells_[half];
      doorbells_[half] = doorbell;
    }
    if (rings || (curious_ && chance % 4 == 0)) {
      // Acquires the entries and their sources.
      record_ = mlx5::big_endian(load<Order::acquire, Scope::sys>(pair_.record));
    }
    return taken + static_cast<uint16_t>(record_ - taken);
  }

  /// Translates an entry. One that no card takes becomes a request of no kind.
  TOKENYARD_DEVICE void take(uint32_t turn, NetworkRequest& request) const {
    const mlx5::Block block = pair_.blocks[turn & (pair_.slots - 1)];
    const uint32_t head = mlx5::big_endian(block.control.modifier_index_opcode);
    const uint32_t tail = mlx5::big_endian(block.control.queue_segments);
    const uint32_t segments = tail & 0xff;
    request.kind = static_cast<NetworkRequest::Kind>(0xff);
    request.pieces = 0;
    request.inline_bytes = 0;
    request.target_key = 0;
    request.target = request.addend = request.zero = 0;
    const bool ours = (head >> 8 & 0xffff) == (turn & 0xffff) && tail >> 8 == pair_.number &&
                      block.control.flags == mlx5::kNotify;
    if (!ours) return;
    const auto opcode = static_cast<mlx5::Opcode>(head & 0xff);
    if (opcode == mlx5::Opcode::no_op) {
      if (segments == 1) request.kind = NetworkRequest::Kind::put_inline;
      return;
    }
    request.target_key = mlx5::big_endian(block.remote.key);
    request.target = mlx5::big_endian(block.remote.address);
    if (opcode == mlx5::Opcode::masked_fetch_add) {
      if (head >> 24 != mlx5::kEightBytes || segments != 4 || block.add.boundary != 0) return;
      request.kind = NetworkRequest::Kind::signal;
      request.addend = mlx5::big_endian(block.add.addend);
      request.sources[0] = source_of(block.old_value);
    } else if (opcode == mlx5::Opcode::rdma_write && segments >= 2 && segments <= 4) {
      take_write(block, segments, request);
    }
  }

  /// Tells that so many entries have completed.
  TOKENYARD_DEVICE void complete(uint32_t count) {
    // Releases the reads of entries and sources.
    store<Order::release, Scope::sys>(
        &pair_.completion->index_opcode,
        mlx5::index_opcode_of(count - 1, mlx5::Completed::request, rounds_++));
  }
  TOKENYARD_DEVICE void refuse(uint32_t turn, const NicRefusal& refusal) {
    fail(turn, syndrome_of(refusal.check));
  }
  /// Tells that all entries before `until` were flushed.
  TOKENYARD_DEVICE void flush(uint32_t until) { fail(until - 1, mlx5::Syndrome::flushed); }

 private:
  TOKENYARD_DEVICE static NetworkSource source_of(const mlx5::Data& data) {
    return {.key = mlx5::big_endian(data.key),
            .bytes = mlx5::big_endian(data.bytes),
            .from = reinterpret_cast<const void*>(mlx5::big_endian(data.address))};
  }

  TOKENYARD_DEVICE static void take_write(const mlx5::Block& block, uint32_t segments,
                                          NetworkRequest& request) {
    const uint32_t header = mlx5::big_endian(block.inline_header);
    if (segments == 2) {
      request.kind = NetworkRequest::Kind::put_inline;
    } else if ((header & mlx5::kInline) != 0) {
      const uint32_t bytes = header & ~mlx5::kInline;
      if (bytes > mlx5::Block::kInlineMax || segments != 2 + (4 + bytes + 15) / 16) return;
      request.kind = NetworkRequest::Kind::put_inline;
      request.inline_bytes = static_cast<uint16_t>(bytes);
      for (uint32_t byte = 0; byte < bytes; ++byte) request.bytes[byte] = block.inline_bytes[byte];
    } else {
      request.pieces = static_cast<uint8_t>(segments - 2);
      for (uint32_t piece = 0; piece < request.pieces; ++piece) {
        // 0 would mean 2^31 bytes.
        if (block.data[piece].bytes == 0) return;
        request.sources[piece] = source_of(block.data[piece]);
      }
      request.kind = NetworkRequest::Kind::put;
    }
  }

  TOKENYARD_DEVICE static mlx5::Syndrome syndrome_of(NetworkCheck check) {
    switch (check) {
      case NetworkCheck::none:
        return mlx5::Syndrome::retry_exceeded;
      case NetworkCheck::target_key:
      case NetworkCheck::target_range:
        return mlx5::Syndrome::remote_access;
      case NetworkCheck::source_key:
      case NetworkCheck::source_range:
        return mlx5::Syndrome::local_protection;
      case NetworkCheck::alignment:
        return mlx5::Syndrome::remote_invalid;
      case NetworkCheck::size:
        return mlx5::Syndrome::local_length;
      default:
        return mlx5::Syndrome::local_operation;
    }
  }

  TOKENYARD_DEVICE void fail(uint32_t turn, mlx5::Syndrome syndrome) {
    // Relaxed: the next store publishes it.
    store<Order::relaxed, Scope::sys>(&pair_.completion->syndromes, static_cast<uint32_t>(syndrome)
                                                                        << 24);
    // Publishes the reason.
    store<Order::release, Scope::sys>(
        &pair_.completion->index_opcode,
        mlx5::index_opcode_of(turn, mlx5::Completed::request_error, rounds_++));
  }

  const Mlx5Pair pair_;
  const bool curious_;  ///< looks at the record without being rung
  uint64_t doorbells_[2] = {0, 0};
  uint32_t record_;      ///< the low 16 bits of the count posted, as last seen
  uint32_t rounds_ = 0;  ///< completion entries so far
};

}  // namespace tokenyard
