/// Single-copy transfers for large data: the sender offers its memory, and the receiver copies
/// straight out of it (process_vm_readv), once, instead of into a ring and out of it.
///
///     sender                                    receiver
///     writes address and bytes, and the
///     ring position that comes before them;
///     moves `offered`                           has read the ring up to that position?
///                                               copies a part, moves `returned`
///     counts returned bytes as sent             cannot copy? sets `refused`, and copies no more
///     refused: sends the rest by the ring
///
/// Invariant: nothing is written to the ring while an offer is open, so both ends know the order of
/// all bytes.
///
/// The first offer finds out whether the receiver may read the sender's memory at all (ptrace
/// rules, namespaces, system call filters). A process id means different processes in different
/// namespaces, so the receiver first reads a random number there which no other process's memory
/// holds.
///
/// Invariant: a torn copy never becomes a result. A sender leaves offered bytes alone until they
/// are returned, for as long as its operation is under way. If it gives up, they may change under
/// the receiver's copy; but then it has not entered the commit round of that operation, and never
/// will, so the operation cannot commit. Hence only operations that commit may be offered; messages
/// may not.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "collectives/transports/ring.hpp"

namespace tokenyard::collectives {

/// Offers are multiples of this, so that the bytes after them are aligned as they would be without.
inline constexpr size_t kSingleCopyGranule = 64;

struct SingleCopyWords {
  struct SingleCopySender {
    alignas(kLineBytes) std::atomic<uint64_t> offered = 0;  ///< bytes since the start
    // The latest offer, written before `offered` announces it.
    uint64_t address = 0, bytes = 0;
    uint64_t after = 0;  ///< ring position before it
    int32_t process = 0;
    uint64_t proof = 0, proof_address = 0;
  };
  struct SingleCopyReceiver {
    alignas(kLineBytes) std::atomic<uint64_t> returned = 0;
    std::atomic<uint32_t> refused = 0;
  };
  SingleCopySender copy_sender;
  SingleCopyReceiver copy_receiver;
};

class SingleCopySender {
 public:
  explicit SingleCopySender(SingleCopyWords& words);

  /// Returns whether part of the latest offer is not returned yet.
  bool is_offering() const { return offered_ > returned_; }
  bool may_offer() const { return !is_offering() && words_.copy_receiver.refused.load() == 0; }
  /// Offers a whole number of granules, to be read after `after` bytes of the ring. Needs
  /// may_offer().
  void offer(std::span<const std::byte> bytes, uint64_t after);
  /// Returns the bytes returned since the last call. If no offer is open then, no more will come.
  size_t take_back();

 private:
  SingleCopyWords& words_;
  const std::unique_ptr<const uint64_t> proof_;
  uint64_t offered_ = 0, returned_ = 0;
};

class SingleCopyReceiver {
 public:
  explicit SingleCopyReceiver(SingleCopyWords& words) : words_(words) {}

  /// Returns how many bytes can be copied by a receiver that has read `ring_read` bytes of the
  /// ring.
  size_t available(uint64_t ring_read) const;
  /// Copies into `into`, at most `available`; returns the number of bytes copied, or 0 and refuses.
  size_t copy_from_sender(std::span<std::byte> into);
  uint64_t returned() const { return returned_; }

 private:
  bool is_proved();

  SingleCopyWords& words_;
  uint64_t returned_ = 0;
  bool proved_ = false, refused_ = false;
};

}  // namespace tokenyard::collectives
