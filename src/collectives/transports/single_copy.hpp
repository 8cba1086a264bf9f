/// A way past a ring for what is large: the sender lends its memory, and the receiver copies
/// straight out of it, once instead of in and out.
///
///     lender                                    borrower
///     says where, and after which byte
///     of the ring; moves `offered`                 has read the ring up to there?
///                                               copies a part, moves `returned`
///     takes what is returned for sent           cannot copy? sets `refused`, and borrows no more
///     refused: the rest goes by the ring
///
/// Nothing goes through the ring while something is lent, so both ends know the order of all bytes.
///
/// Whether a process may read another's memory (ptrace's rules, namespaces, filters of system
/// calls) is found out by the first loan. Process numbers mean different things in different
/// namespaces, so a borrower first reads a number there that nobody else's memory holds.
///
/// Who lends must leave its bytes alone until they are returned, as long as its operation is under
/// way. One that has given up no longer does, and what is copied then may be torn. It is of no use
/// to anybody: who gave up has not entered the commit round of that operation, and never will. So
/// only what commits may be lent, and messages may not.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "collectives/transports/ring.hpp"

namespace tokenyard::collectives {

/// Loans are whole multiples of this, so that what follows them lies as aligned as without them.
inline constexpr size_t kSingleCopyGranule = 64;

struct SingleCopyWords {
  struct SingleCopySender {
    alignas(kLineBytes) std::atomic<uint64_t> offered = 0;  ///< bytes, since the beginning
    // Of the latest loan, written before `offered` says so.
    uint64_t address = 0, bytes = 0;
    uint64_t after = 0;  ///< bytes that have gone through the ring before it
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

  /// Of the latest loan something is out.
  bool is_offering() const { return offered_ > returned_; }
  bool may_offer() const { return !is_offering() && words_.copy_receiver.refused.load() == 0; }
  /// If it may: a whole number of granules. `after` so many bytes have gone through the ring.
  void offer(std::span<const std::byte> bytes, uint64_t after);
  /// Bytes that have come back since the last call. No more will if it lends nothing then.
  size_t take_back();

 private:
  SingleCopyWords& words_;
  const std::unique_ptr<const uint64_t> proof_;
  uint64_t offered_ = 0, returned_ = 0;
};

class SingleCopyReceiver {
 public:
  explicit SingleCopyReceiver(SingleCopyWords& words) : words_(words) {}

  /// Bytes to be had now by whoever has read so much of the ring.
  size_t available(uint64_t ring_read) const;
  /// Fills `into`, which is no longer than what is available, or a part of it; 0: refused.
  size_t copy_from_sender(std::span<std::byte> into);
  uint64_t returned() const { return returned_; }

 private:
  bool is_proved();

  SingleCopyWords& words_;
  uint64_t returned_ = 0;
  bool proved_ = false, refused_ = false;
};

}  // namespace tokenyard::collectives
