// Large data bypass the ring of a channel within a host: in order with all other bytes, returned
// only once copied, and by the ring if memory cannot be read.
#include "collectives/transports/single_copy.hpp"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "collectives/wire_ranks.hpp"

namespace tokenyard::collectives {
namespace {

/// Longer than a ring, so that it cannot all be in there.
constexpr size_t kLarge = 1'000'003;

class SingleCopyTest : public testing::Test {
 protected:
  void SetUp() override {
    ranks_.begin_epoch(1);
    low_ = ranks_[0].channel(1, Lane::collective, 1);
    high_ = ranks_[1].channel(1, Lane::collective, 0);
    const auto byte = bytes_of_seed(1, 1);
    std::vector<std::byte> got(1);
    ranks_.poll_until("room", [&] { return low_->send_some(byte) == 1; });
    ranks_.poll_until("a byte", [&] { return high_->receive_some(got) == 1; });
  }

  bool carries(std::span<const std::byte> message, size_t receive_max = kLarge) {
    std::vector<std::byte> got(message.size());
    size_t sent = 0, received = 0;
    ranks_.poll_until("a message", [&] {
      sent += low_->send_some(message.subspan(sent));
      received += high_->receive_some(
          std::span(got).subspan(received, std::min(receive_max, got.size() - received)));
      return sent == message.size() && received == got.size();
    });
    return std::equal(got.begin(), got.end(), message.begin());
  }

  WireRanks ranks_{2};
  std::shared_ptr<Channel> low_, high_;
};

TEST_F(SingleCopyTest, IsNotSentBeforeItHasBeenCopied) {
  const auto message = bytes_of_seed(kLarge, 2);
  auto offered = message;
  for (int turn = 0; turn < 100; ++turn) EXPECT_EQ(low_->send_some(offered), 0u);
  std::vector<std::byte> got(kLarge);
  EXPECT_EQ(high_->receive_some(std::span(got).first(300'000)), 300'000u);
  const size_t back = low_->send_some(offered);
  EXPECT_EQ(back, 300'000u);
  std::fill_n(offered.begin(), back, std::byte{0});  // these belong to the sender again
  size_t sent = back, received = back;
  ranks_.poll_until("the rest", [&] {
    received += high_->receive_some(std::span(got).subspan(received));
    sent += low_->send_some(std::span(offered).subspan(sent));
    return sent == kLarge && received == kLarge;
  });
  EXPECT_TRUE(got == message);
  EXPECT_EQ(low_->bytes_sent(), kLarge + 1);
}

TEST_F(SingleCopyTest, KeepsItsPlaceAmongWhatGoesByTheRing) {
  for (const size_t before : {size_t{1}, size_t{48}, size_t{100'000}}) {
    for (const size_t piece : {size_t{977}, size_t{70'000}, kLarge}) {
      EXPECT_TRUE(carries(bytes_of_seed(before, 3), piece));
      EXPECT_TRUE(carries(bytes_of_seed(kLarge, 4), piece)) << before << ", " << piece;
    }
  }
}

TEST_F(SingleCopyTest, IsReadInPlaceAsAlignedAsItLiesInTheStream) {
  size_t position = 1;
  for (uint32_t round = 0; round < 10; ++round) {
    const auto message = bytes_of_seed(300'000 + round, round);
    size_t sent = 0, read = 0;
    ranks_.poll_until("a message", [&] {
      sent += low_->send_some(std::span(message).subspan(sent));
      const auto seen = high_->arrived(message.size() - read);
      if (!seen.empty()) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(seen.data()) % 64, (position + read) % 64) << round;
      }
      const size_t taken = std::min<size_t>(seen.size(), 10'000);
      EXPECT_TRUE(std::equal(seen.begin(), seen.begin() + static_cast<ptrdiff_t>(taken),
                             message.begin() + static_cast<ptrdiff_t>(read)));
      high_->consume(taken);
      read += taken;
      return sent == message.size() && read == message.size();
    });
    position += message.size();
  }
}

TEST_F(SingleCopyTest, OfMemoryThatCannotBeReadGoesByTheRing) {
  constexpr size_t bytes = 1 << 20;
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const std::span<std::byte> offered(static_cast<std::byte*>(memory), bytes);
  const auto message = bytes_of_seed(bytes, 6);
  std::copy(message.begin(), message.end(), offered.begin());
  ASSERT_EQ(low_->send_some(offered), 0u);
  // Makes the second half unreadable while the other end looks.
  ASSERT_EQ(mprotect(offered.data() + bytes / 2, bytes / 2, PROT_NONE), 0);
  std::vector<std::byte> got(bytes);
  size_t received = high_->receive_some(got);
  EXPECT_EQ(received, bytes / 2);
  received += high_->receive_some(std::span(got).subspan(received));
  EXPECT_EQ(received, bytes / 2);
  ASSERT_EQ(mprotect(memory, bytes, PROT_READ | PROT_WRITE), 0);
  size_t sent = 0;
  ranks_.poll_until("the rest", [&] {
    sent += low_->send_some(offered.subspan(sent));
    received += high_->receive_some(std::span(got).subspan(received));
    return sent == bytes && received == bytes;
  });
  EXPECT_TRUE(got == message);
  EXPECT_TRUE(carries(message)) << "by the ring from now on";
  munmap(memory, bytes);
}

/// Makes this thread's calls of process_vm_readv fail, as a container's filter may.
void forbid_reading_of_memory() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = 4, .filter = code};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

TEST_F(SingleCopyTest, GoesByTheRingWhereMemoryMayNotBeRead) {
  std::thread([&] {
    forbid_reading_of_memory();
    for (uint32_t seed = 0; seed < 3; ++seed) EXPECT_TRUE(carries(bytes_of_seed(kLarge, seed)));
    // Since the first offer was refused, none follows: a ring takes as much as fits at once.
    const auto message = bytes_of_seed(kLarge, 9);
    EXPECT_GT(low_->send_some(message), 0u);
  }).join();
}

TEST_F(SingleCopyTest, IsNotMadeOfMessages) {
  const auto low = ranks_[0].channel(1, Lane::point_to_point, 1);
  const auto high = ranks_[1].channel(1, Lane::point_to_point, 0);
  const auto message = bytes_of_seed(kLarge, 5);
  std::vector<std::byte> got(1);
  ranks_.poll_until("room", [&] { return low->send_some(std::span(message).first(1)) == 1; });
  ranks_.poll_until("a byte", [&] { return high->receive_some(got) == 1; });
  EXPECT_GT(low->send_some(std::span(message).subspan(1)), 0u);
}

// In another namespace, a process id may belong to another process.
TEST(SingleCopyReceiverTest, RefusesMemoryOfAProcessThatHasNoProof) {
  SingleCopyWords words;
  SingleCopySender copy_sender(words);
  const auto message = bytes_of_seed(kSingleCopyGranule, 1);
  std::vector<std::byte> got(kSingleCopyGranule);
  const uint64_t other = words.copy_sender.proof + 1;
  copy_sender.offer(message, 0);
  words.copy_sender.proof_address = reinterpret_cast<uint64_t>(&other);
  SingleCopyReceiver copy_receiver(words);
  ASSERT_EQ(copy_receiver.available(0), kSingleCopyGranule);
  EXPECT_EQ(copy_receiver.copy_from_sender(got), 0u);
  EXPECT_EQ(copy_receiver.available(0), 0u);
  EXPECT_EQ(copy_sender.take_back(), 0u);
  EXPECT_FALSE(copy_sender.is_offering());
  EXPECT_FALSE(copy_sender.may_offer());
}

TEST(SingleCopyReceiverTest, WaitsForWhatGoesByTheRingBefore) {
  SingleCopyWords words;
  SingleCopySender copy_sender(words);
  const auto message = bytes_of_seed(kSingleCopyGranule, 1);
  copy_sender.offer(message, 100);
  SingleCopyReceiver copy_receiver(words);
  EXPECT_EQ(copy_receiver.available(99), 0u);
  EXPECT_EQ(copy_receiver.available(100), kSingleCopyGranule);
}

TEST(SingleCopySenderTest, DoesNotBelieveABorrowerThatReturnsMoreThanItHas) {
  SingleCopyWords words;
  SingleCopySender copy_sender(words);
  const auto message = bytes_of_seed(kSingleCopyGranule, 1);
  copy_sender.offer(message, 0);
  words.copy_receiver.returned.store(kSingleCopyGranule + 1);
  EXPECT_EQ(copy_sender.take_back(), 0u);
  EXPECT_TRUE(copy_sender.is_offering());
}

}  // namespace
}  // namespace tokenyard::collectives
