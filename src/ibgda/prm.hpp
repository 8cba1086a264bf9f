/// Commands of mlx5 cards as bytes: the fields that this library sets and reads, at the places that
/// NVIDIA's public "Mellanox Adapters Programmer's Reference Manual" (PRM) gives them. No public
/// header of rdma-core has them. Fields are big-endian, and bits are counted from the highest bit
/// of the first byte on, as in the manual's tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tokenyard::ibgda::prm {

struct Field {
  uint32_t at;    ///< first bit
  uint32_t bits;  ///< at most 64

  /// Returns the same field of a structure that begins at bit `base`.
  constexpr Field in(uint32_t base) const { return {base + at, bits}; }
};

inline uint64_t get(std::span<const std::byte> bytes, Field field) {
  uint64_t value = 0;
  for (uint32_t bit = field.at; bit < field.at + field.bits; ++bit)
    value = value << 1 | (std::to_integer<uint64_t>(bytes[bit / 8]) >> (7 - bit % 8) & 1);
  return value;
}

class Command {
 public:
  Command(uint32_t opcode, size_t bytes) : bytes_(bytes) { set({0, 16}, opcode); }

  /// Sets a field that is still 0. The value must fit.
  void set(Field field, uint64_t value) {
    for (uint32_t bit = field.at + field.bits; bit-- != field.at; value >>= 1)
      bytes_[bit / 8] |= static_cast<std::byte>((value & 1) << (7 - bit % 8));
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

enum Opcode : uint32_t {
  kQueryCapabilities = 0x100,
  kCreateKey = 0x200,
  kCreateCompletionQueue = 0x400,
  kCreateQueuePair = 0x500,
  kResetToInit = 0x502,
  kInitToReceive = 0x503,  ///< "RTR", ready to receive
  kReceiveToSend = 0x504,  ///< "RTS", ready to send
  kToError = 0x507,
};

/// All commands and answers.
inline constexpr Field kModifier{0x30, 16};
inline constexpr Field kStatus{0x00, 8}, kSyndrome{0x20, 32};
inline constexpr size_t kAnswerBytes = 16;
/// The number of the object that a CREATE command has made, in its answer.
inline constexpr Field kMade{0x48, 24};
/// The queue pair of a command that changes one.
inline constexpr Field kQueuePair{0x48, 24};

/// QUERY_HCA_CAP: the modifier is a group * 2, + 1 for the values in force.
struct Capabilities {
  static constexpr size_t kBytes = 16;
  static constexpr size_t kAnswerBytes = 16 + 4096;
  static constexpr uint32_t kGeneral = 0, kAtomic = 3;
  static constexpr uint32_t kBase = 0x80;  ///< bit at which the group begins in the answer
  // General.
  static constexpr Field kLogKlmsMax{kBase + 0x11a, 6};      ///< entries of an indirect key
  static constexpr Field kLogReadsAsked{kBase + 0x14a, 6};   ///< reads and atomics per queue pair
  static constexpr Field kLogReadsServed{kBase + 0x15a, 6};  ///< that may be under way
  static constexpr Field kAtomics{kBase + 0x21e, 1};
  static constexpr Field kBlueFlame{kBase + 0x260, 1};
  static constexpr Field kLogBlueFlameBytes{kBase + 0x26b, 5};  ///< both halves
  // Atomic.
  static constexpr Field kHostOrder{kBase + 0x40, 2};  ///< 1: adds in the host's byte order
  static constexpr Field kOperations{kBase + 0x90, 16};
  static constexpr Field kSizes{kBase + 0xb0, 16};
  static constexpr uint32_t kMaskedFetchAdd = 1 << 3;  ///< of the operations
  static constexpr uint32_t kEightBytes = 1 << 3;      ///< of the sizes
};

/// CREATE_MKEY of an indirect key: a list of ranges (KLM) of other keys, one behind the other.
struct Key {
  static constexpr uint32_t kBase = 0x80;
  static constexpr Field kAtomic{kBase + 0x11, 1};
  static constexpr Field kRemoteWrite{kBase + 0x12, 1}, kRemoteRead{kBase + 0x13, 1};
  static constexpr Field kLocalWrite{kBase + 0x14, 1}, kLocalRead{kBase + 0x15, 1};
  static constexpr Field kMode{kBase + 0x16, 2};
  static constexpr uint32_t kKlms = 2;
  static constexpr Field kQueuePair{kBase + 0x20, 24};  ///< that alone may use it
  static constexpr uint32_t kAnyQueuePair = 0xffffff;
  static constexpr Field kLowByte{kBase + 0x38, 8};  ///< of the key; its others are kMade
  static constexpr Field kDomain{kBase + 0x68, 24};
  static constexpr Field kStart{kBase + 0x80, 64}, kBytes{kBase + 0xc0, 64};
  static constexpr Field kOctwords{kBase + 0x1a0, 32};  ///< 16-byte entries, a multiple of 4
  static constexpr Field kOctwordsSent{0x300, 32};
  static constexpr uint32_t kKlm = 0x880;  ///< the first entry
  static constexpr uint32_t kKlmBits = 0x80;
  static constexpr Field kKlmBytes{0x00, 32}, kKlmKey{0x20, 32}, kKlmAddress{0x40, 64};
};

struct CompletionQueue {
  static constexpr size_t kCommandBytes = 0x880 / 8;
  static constexpr uint32_t kBase = 0x80;
  static constexpr Field kRecordGiven{kBase + 0x06, 1};
  static constexpr Field kCollapsed{kBase + 0x0b, 1};
  static constexpr Field kOverrunIgnored{kBase + 0x0e, 1};
  static constexpr Field kRecordMemory{kBase + 0x20, 32};
  static constexpr Field kLogEntries{kBase + 0x63, 5};
  static constexpr Field kRegisters{kBase + 0x68, 24};
  static constexpr Field kEventQueue{kBase + 0xb8, 8};
  static constexpr Field kRecordOffset{kBase + 0x1c0, 64};
  static constexpr Field kMemoryOffset{0x280, 64};
  static constexpr Field kMemory{0x2c0, 32};
  static constexpr Field kMemoryGiven{0x2e0, 1};
};

/// Commands that make or change a queue pair have one context at one place.
struct QueuePair {
  static constexpr size_t kCommandBytes = 0x880 / 8;
  static constexpr uint32_t kBase = 0xc0;
  static constexpr Field kService{kBase + 0x08, 8};  ///< 0: reliable connection
  static constexpr Field kMigration{kBase + 0x13, 2};
  static constexpr uint32_t kMigrated = 3;
  static constexpr Field kDomain{kBase + 0x28, 24};
  static constexpr Field kMtu{kBase + 0x40, 3};
  static constexpr Field kLogMessageMax{kBase + 0x43, 5};
  static constexpr Field kLogSends{kBase + 0x51, 4};
  static constexpr Field kRegisters{kBase + 0x68, 24};
  static constexpr Field kPeer{kBase + 0xa8, 24};
  static constexpr Field kLogAckEvery{kBase + 0x380, 4};
  static constexpr Field kLogReadsAsked{kBase + 0x388, 3};
  static constexpr Field kRetries{kBase + 0x38d, 3};
  static constexpr Field kNotReadyRetries{kBase + 0x390, 3};
  static constexpr Field kSendCompletions{kBase + 0x3e8, 24};
  static constexpr Field kLogReadsServed{kBase + 0x488, 3};
  static constexpr Field kAtomicMode{kBase + 0x48c, 4};
  static constexpr uint32_t kUpToEightBytes = 3;
  static constexpr Field kRemoteRead{kBase + 0x490, 1};
  static constexpr Field kRemoteWrite{kBase + 0x491, 1};
  static constexpr Field kRemoteAtomic{kBase + 0x492, 1};
  static constexpr Field kNotReadyDelay{kBase + 0x4a3, 5};
  static constexpr Field kReceiveCompletions{kBase + 0x4e8, 24};
  static constexpr Field kRecordOffset{kBase + 0x500, 64};
  static constexpr Field kReceiveQueue{kBase + 0x565, 3};
  static constexpr uint32_t kNoReceiveQueue = 3;
  static constexpr Field kRecordGiven{kBase + 0x683, 1};
  static constexpr Field kRecordMemory{kBase + 0x720, 32};
  // CREATE_QP only.
  static constexpr Field kMemoryOffset{0x800, 64};
  static constexpr Field kMemory{0x840, 32};
  static constexpr Field kMemoryGiven{0x860, 1};
  // The primary address path.
  static constexpr uint32_t kPath = kBase + 0xc0;
  static constexpr Field kPkeyIndex{kPath + 0x10, 16};
  static constexpr Field kGlobal{kPath + 0x28, 1};
  static constexpr Field kPeerLid{kPath + 0x30, 16};
  static constexpr Field kAckTimeout{kPath + 0x40, 5};
  static constexpr Field kGidIndex{kPath + 0x48, 8};
  static constexpr Field kHopLimit{kPath + 0x58, 8};
  static constexpr Field kTrafficClass{kPath + 0x64, 8};
  static constexpr uint32_t kPeerGid = kPath + 0x80;  ///< 16 bytes
  static constexpr Field kDscp{kPath + 0x10a, 6};
  static constexpr Field kUdpSourcePort{kPath + 0x110, 16};
  static constexpr Field kEthernetPriority{kPath + 0x121, 3};
  static constexpr Field kServiceLevel{kPath + 0x124, 4};
  static constexpr Field kPort{kPath + 0x128, 8};
  static constexpr Field kMacHigh{kPath + 0x130, 16}, kMacLow{kPath + 0x140, 32};
};

}  // namespace tokenyard::ibgda::prm
