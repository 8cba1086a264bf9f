#include "collectives/transports/loan.hpp"

#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

#include "net/key.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

/// A part of a loan: long enough that a system call costs nothing beside it.
constexpr size_t kPartBytes = 1 << 20;

/// Fewer than wanted where the memory ends; 0 where it cannot be read at all.
size_t read_memory(int32_t process, uint64_t address, std::span<std::byte> into) {
  const iovec here{into.data(), into.size()};
  const iovec there{reinterpret_cast<void*>(address), into.size()};
  const ssize_t got = process_vm_readv(process, &here, 1, &there, 1, 0);
  return got > 0 ? static_cast<size_t>(got) : 0;
}

}  // namespace

Lender::Lender(LoanWords& words)
    : words_(words), proof_(std::make_unique<const uint64_t>(net::random_number())) {}

void Lender::lend(std::span<const std::byte> bytes, uint64_t after) {
  if (is_lending() || bytes.size() % kLoanGranule != 0) {
    throw InternalError("memory is lent in odd pieces, or before the last was returned");
  }
  words_.lender.address = reinterpret_cast<uint64_t>(bytes.data());
  words_.lender.bytes = bytes.size();
  words_.lender.after = after;
  words_.lender.process = getpid();
  words_.lender.proof = *proof_;
  words_.lender.proof_address = reinterpret_cast<uint64_t>(proof_.get());
  lent_ += bytes.size();
  words_.lender.lent.store(lent_);  // Publishes where they are.
}

size_t Lender::take_back() {
  // In this order: who has refused returns nothing after that.
  const bool refused = words_.borrower.refused.load() != 0;
  const uint64_t back = words_.borrower.returned.load() - returned_;
  if (back > lent_ - returned_) return 0;  // A borrower that claims more is not believed.
  returned_ += back;
  if (refused) lent_ = returned_;
  return back;
}

size_t Borrower::available(uint64_t ring_read) const {
  const uint64_t left = words_.lender.lent.load() - returned_;
  const bool is_next =
      left > 0 && !refused_ && left <= words_.lender.bytes && words_.lender.after == ring_read;
  return is_next ? left : 0;
}

size_t Borrower::borrow(std::span<std::byte> into) {
  const uint64_t left = words_.lender.lent.load() - returned_;
  const uint64_t address = words_.lender.address + (words_.lender.bytes - left);
  const size_t wanted = std::min(into.size(), kPartBytes);
  const size_t got =
      is_proved() ? read_memory(words_.lender.process, address, into.first(wanted)) : 0;
  if (got == 0) {
    // Nobody may read it, or it is no such memory; or its process is gone, which others find out.
    refused_ = true;
    words_.borrower.refused.store(1);
    return 0;
  }
  returned_ += got;
  words_.borrower.returned.store(returned_);  // The lender may change them from now on.
  return got;
}

bool Borrower::is_proved() {
  if (proved_) return true;
  uint64_t found = 0;
  const size_t got = read_memory(words_.lender.process, words_.lender.proof_address,
                                 std::as_writable_bytes(std::span(&found, 1)));
  proved_ = got == sizeof found && found == words_.lender.proof;
  return proved_;
}

}  // namespace tokenyard::collectives
