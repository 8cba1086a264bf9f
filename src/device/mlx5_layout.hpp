/// The bytes that an mlx5 card (ConnectX) and its driver exchange: entries of a send queue, the
/// doorbell record, and entries of a completion queue. Multi-byte fields are big-endian.
///
///   entry of the send queue, a basic block of 64 bytes
///     RDMA write          control 16 | remote 16 | up to two data 16
///     RDMA write, inline  control 16 | remote 16 | inline header 4, up to 28 bytes
///     8-byte masked add   control 16 | remote 16 | masked add 16 | data 16, for the old value
///     no-op               control 16
///
/// tests/fabric/mlx5_layout_test.cpp compares this with the headers of rdma-core. Two facts are not
/// in them: the modifier of an 8-byte masked add, and its segment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard::mlx5 {

/// Converts between the machine's order, which is little-endian, and a card's.
TOKENYARD_HOST_DEVICE constexpr uint16_t big_endian(uint16_t value) {
  return static_cast<uint16_t>(value << 8 | value >> 8);
}
TOKENYARD_HOST_DEVICE constexpr uint32_t big_endian(uint32_t value) {
  return value << 24 | (value & 0xff00) << 8 | (value >> 8 & 0xff00) | value >> 24;
}
TOKENYARD_HOST_DEVICE constexpr uint64_t big_endian(uint64_t value) {
  return uint64_t{big_endian(static_cast<uint32_t>(value))} << 32 |
         big_endian(static_cast<uint32_t>(value >> 32));
}

enum class Opcode : uint8_t {
  no_op = 0x00,
  rdma_write = 0x08,
  rdma_write_immediate = 0x09,
  masked_fetch_add = 0x15,
};
/// Of a masked fetch-add whose word has 8 bytes.
inline constexpr uint8_t kEightBytes = 0x09;
/// Asks for a completion entry.
inline constexpr uint8_t kNotify = 0x08;

struct Control {
  uint32_t modifier_index_opcode;  ///< 8, 16 and 8 bits
  uint32_t queue_segments;  ///< queue pair's number in 24 bits; 16-byte segments of the entry
  uint8_t signature;
  uint8_t stream[2];
  uint8_t flags;  ///< kNotify
  uint32_t immediate;
};

struct Remote {
  uint64_t address;
  uint32_t key;
  uint32_t reserved;
};

/// A piece of a source. A length of 0 means 2^31 bytes, so an empty piece has no segment.
struct Data {
  uint32_t bytes;
  uint32_t key;
  uint64_t address;
};

struct MaskedAdd {
  uint64_t addend;
  uint64_t boundary;  ///< bits at which fields end, so that no carry leaves them; 0: one field
};

/// Before inline bytes: their number, and this bit.
inline constexpr uint32_t kInline = 0x80000000;

/// A basic block of a send queue.
struct alignas(64) Block {
  static constexpr uint32_t kInlineMax = 28;
  Control control;
  Remote remote;
  union {
    Data data[2];
    struct {
      uint32_t inline_header;
      uint8_t inline_bytes[kInlineMax];
    };
    struct {
      MaskedAdd add;
      Data old_value;
    };
  };
};

TOKENYARD_HOST_DEVICE constexpr Control control_of(Opcode opcode, uint8_t modifier, uint32_t index,
                                                   uint32_t queue, uint32_t segments) {
  return {.modifier_index_opcode =
              big_endian(uint32_t{modifier} << 24 | (index & 0xffff) << 8 | uint32_t(opcode)),
          .queue_segments = big_endian(queue << 8 | segments),
          .signature = 0,
          .stream = {},
          .flags = kNotify,
          .immediate = 0};
}

/// The outcome in the highest four bits of a completion entry.
enum class Completed : uint8_t { request = 0, request_error = 13, invalid = 15 };

/// Why a request failed.
enum class Syndrome : uint8_t {
  none = 0,
  local_length = 0x01,
  local_operation = 0x02,   ///< the entry makes no sense
  local_protection = 0x04,  ///< key or range of a source
  flushed = 0x05,           ///< an earlier request of the queue has failed
  remote_invalid = 0x12,    ///< such as an unaligned word
  remote_access = 0x13,     ///< key or range of the target
  retry_exceeded = 0x15,    ///< the peer does not answer
};

/// The only entry of a collapsed completion queue, which each completion overwrites. The owner bit
/// changes with each round of the queue, and means nothing in a collapsed one.
struct alignas(64) Completion {
  uint8_t reserved[52];
  uint32_t syndromes;  ///< of an error; see syndrome_of
  uint32_t opcode_queue;
  uint32_t index_opcode;  ///< index of the completed entry; see index_of, completed_of
};

// These read a word of the entry as a little-endian machine loads it.
TOKENYARD_HOST_DEVICE constexpr uint16_t index_of(uint32_t index_opcode) {
  return big_endian(static_cast<uint16_t>(index_opcode));
}
TOKENYARD_HOST_DEVICE constexpr Completed completed_of(uint32_t index_opcode) {
  return static_cast<Completed>(index_opcode >> 28);
}
TOKENYARD_HOST_DEVICE constexpr Syndrome syndrome_of(uint32_t syndromes) {
  return static_cast<Syndrome>(syndromes >> 24);
}
TOKENYARD_HOST_DEVICE constexpr uint32_t index_opcode_of(uint32_t index, Completed completed,
                                                         uint32_t owner) {
  return big_endian(static_cast<uint16_t>(index)) | uint32_t(completed) << 28 | (owner & 1) << 24;
}

/// A queue pair's doorbell record. The sender stores the number of entries posted so far, in 16
/// bits, before it rings.
struct alignas(8) DoorbellRecord {
  uint32_t receive;
  uint32_t send;
};

/// A doorbell is a store of the last entry's first 8 bytes to one half of a BlueFlame register; the
/// halves take turns.
struct BlueFlame {
  static constexpr uint32_t kHalf = 256;
  struct alignas(kHalf) Half {
    uint64_t doorbell;
  } halves[2];
};

static_assert(sizeof(Control) == 16 && offsetof(Control, flags) == 11);
static_assert(sizeof(Remote) == 16 && offsetof(Remote, key) == 8);
static_assert(sizeof(Data) == 16 && offsetof(Data, key) == 4 && offsetof(Data, address) == 8);
static_assert(sizeof(MaskedAdd) == 16);
static_assert(sizeof(Block) == 64 && offsetof(Block, remote) == 16 && offsetof(Block, data) == 32);
static_assert(offsetof(Block, inline_bytes) == 36 && offsetof(Block, old_value) == 48);
static_assert(sizeof(Completion) == 64 && offsetof(Completion, syndromes) == 52);
static_assert(offsetof(Completion, index_opcode) == 60);
static_assert(offsetof(DoorbellRecord, send) == 4 && sizeof(BlueFlame) == 512);

}  // namespace tokenyard::mlx5
