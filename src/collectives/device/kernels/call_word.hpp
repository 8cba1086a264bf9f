/// The description of a call that a rank stores on all others. All ranks must make the same call.
#pragma once

#include <bit>
#include <cstdint>

#include "device/memory.hpp"
#include "tokenyard/collectives.hpp"
#include "tokenyard/tensor.hpp"

namespace tokenyard::device_collectives {

enum class Operation : uint8_t {
  barrier = 1,
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  gather,
  scatter,
  reduce_scatter,
  all_to_all,
};

/// How a call moves its bytes.
enum class Protocol : uint8_t {
  automatic,  ///< chosen by size, ranks and reach
  slots,      ///< the data is the flag: eight bytes of data travel with their epoch
  rings,      ///< chunks through rings in the arena, a flag per chunk
  direct,     ///< from tensor to tensor, all of which lie in the arena
  packets,    ///< the data is the flag: sixteen bytes in a place that is empty before
  messages,   ///< a size per pair of ranks; no caller chooses it
  splits,     ///< the same, known on the device only
};

/// The fields of a call that must agree among ranks, as two numbers that are compared.
struct Signature {
  uint32_t what;
  uint64_t size;  ///< bytes of the whole result or input, whichever has all parts; its upper bits
                  ///< are a hash of the factor

  static constexpr uint32_t kRootBits = 12, kBytesBits = 48;

  static Signature of(Operation operation, ReduceOp op, DataType type, Protocol protocol,
                      uint32_t root, uint64_t bytes, double factor = 1) {
    const uint64_t hash = factor == 1 ? 0 : std::bit_cast<uint64_t>(factor) * kOdd >> kBytesBits;
    return {static_cast<uint32_t>(operation) | static_cast<uint32_t>(op) << 4 |
                static_cast<uint32_t>(type) << 8 | static_cast<uint32_t>(protocol) << 16 |
                root << (32 - kRootBits),
            bytes | hash << kBytesBits};
  }
  static uint64_t bytes_of(uint64_t size) { return size & ((uint64_t{1} << kBytesBits) - 1); }
  Operation operation() const { return static_cast<Operation>(what & 15); }
  ReduceOp op() const { return static_cast<ReduceOp>(what >> 4 & 15); }
  DataType type() const { return static_cast<DataType>(what >> 8 & 255); }
  Protocol protocol() const { return static_cast<Protocol>(what >> 16 & 15); }
  uint32_t root() const { return what >> (32 - kRootBits); }

  TOKENYARD_HOST_DEVICE bool operator==(const Signature& other) const {
    return what == other.what && size == other.size;
  }

  /// Returns what data of this call carry beside their epoch's lower half: a hash of the signature
  /// and of the upper half. Never 0, which slots that no call has written hold.
  TOKENYARD_HOST_DEVICE uint32_t digest(uint64_t epoch) const {
    uint64_t hash = (uint64_t{what} << 32 | static_cast<uint32_t>(epoch >> 32)) ^ size * kOdd;
    hash = (hash ^ hash >> 29) * kOdd;
    hash = (hash ^ hash >> 32) * kOdd;
    return static_cast<uint32_t>(hash >> 32) | 1;
  }

 private:
  static constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
};

/// A signature with the lower half of its call's epoch, stored and loaded in one access. No
/// signature's `what` is 0, so a word that no call has written is of none.
struct CallWord {
  Bytes16 bits;

  TOKENYARD_HOST_DEVICE static CallWord of(uint64_t epoch, const Signature& signature) {
    return {{{static_cast<uint32_t>(epoch), signature.what, static_cast<uint32_t>(signature.size),
              static_cast<uint32_t>(signature.size >> 32)}}};
  }
  TOKENYARD_HOST_DEVICE bool is_of(uint64_t epoch) const {
    return bits.word[0] == static_cast<uint32_t>(epoch) && bits.word[1] != 0;
  }
  TOKENYARD_HOST_DEVICE Signature signature() const {
    return {bits.word[1], bits.word[2] | uint64_t{bits.word[3]} << 32};
  }
};

}  // namespace tokenyard::device_collectives
