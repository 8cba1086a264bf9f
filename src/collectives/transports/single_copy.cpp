#include "collectives/transports/single_copy.hpp"

#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

#include "net/key.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

/// Copied per system call: long enough that its cost does not matter.
constexpr size_t kPartBytes = 1 << 20;

/// Returns the bytes read: fewer than wanted at the end of the memory; 0 if it cannot be read.
size_t read_memory(int32_t process, uint64_t address, std::span<std::byte> into) {
  const iovec here{into.data(), into.size()};
  const iovec there{reinterpret_cast<void*>(address), into.size()};
  const ssize_t got = process_vm_readv(process, &here, 1, &there, 1, 0);
  return got > 0 ? static_cast<size_t>(got) : 0;
}

}  // namespace

SingleCopySender::SingleCopySender(SingleCopyWords& words)
    : words_(words), proof_(std::make_unique<const uint64_t>(net::random_number())) {}

void SingleCopySender::offer(std::span<const std::byte> bytes, uint64_t after) {
  if (is_offering() || bytes.size() % kSingleCopyGranule != 0) {
    throw InternalError("memory was offered in odd pieces, or before the last offer was returned");
  }
  words_.copy_sender.address = reinterpret_cast<uint64_t>(bytes.data());
  words_.copy_sender.bytes = bytes.size();
  words_.copy_sender.after = after;
  words_.copy_sender.process = getpid();
  words_.copy_sender.proof = *proof_;
  words_.copy_sender.proof_address = reinterpret_cast<uint64_t>(proof_.get());
  offered_ += bytes.size();
  words_.copy_sender.offered.store(offered_);  // publishes the offer
}

size_t SingleCopySender::take_back() {
  // In this order: a receiver that has refused returns nothing afterwards.
  const bool refused = words_.copy_receiver.refused.load() != 0;
  const uint64_t back = words_.copy_receiver.returned.load() - returned_;
  if (back > offered_ - returned_) return 0;  // a receiver that claims more is not trusted
  returned_ += back;
  if (refused) offered_ = returned_;
  return back;
}

size_t SingleCopyReceiver::available(uint64_t ring_read) const {
  const uint64_t left = words_.copy_sender.offered.load() - returned_;
  const bool is_next = left > 0 && !refused_ && left <= words_.copy_sender.bytes &&
                       words_.copy_sender.after == ring_read;
  return is_next ? left : 0;
}

size_t SingleCopyReceiver::copy_from_sender(std::span<std::byte> into) {
  const uint64_t left = words_.copy_sender.offered.load() - returned_;
  const uint64_t address = words_.copy_sender.address + (words_.copy_sender.bytes - left);
  const size_t wanted = std::min(into.size(), kPartBytes);
  const size_t got =
      is_proved() ? read_memory(words_.copy_sender.process, address, into.first(wanted)) : 0;
  if (got == 0) {
    // Reading is not permitted or the memory is gone; if the process is gone, others will notice.
    refused_ = true;
    words_.copy_receiver.refused.store(1);
    return 0;
  }
  returned_ += got;
  words_.copy_receiver.returned.store(returned_);  // the sender may change the bytes from now on
  return got;
}

bool SingleCopyReceiver::is_proved() {
  if (proved_) return true;
  uint64_t found = 0;
  const size_t got = read_memory(words_.copy_sender.process, words_.copy_sender.proof_address,
                                 std::as_writable_bytes(std::span(&found, 1)));
  proved_ = got == sizeof found && found == words_.copy_sender.proof;
  return proved_;
}

}  // namespace tokenyard::collectives
