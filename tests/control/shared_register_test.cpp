#include "control/shared_register.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/sealed_memory.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::control {
namespace {

constexpr uint64_t kWriters = 4;

/// Writers that count on from one number write different ones, so only one of them is acknowledged.
uint64_t counted(uint64_t number) {
  return number / kWriters;
}

/// A value that shows whether it is whole.
Store::Value value_of(uint64_t number) {
  Store::Value value(8 + (number % 40) * 8);
  for (size_t at = 0; at < value.size(); at += 8) std::memcpy(value.data() + at, &number, 8);
  return value;
}

uint64_t number_in(const std::optional<Store::Value>& value) {
  uint64_t number = 0;
  if (value) std::memcpy(&number, value->data(), 8);
  EXPECT_EQ(value.value_or(value_of(0)), value_of(number)) << "the value is torn";
  return number;
}

TEST(SharedRegister, HoldsOneValue) {
  const FileDescriptor memory = SharedRegister::make(2);
  SharedRegister first(memory), second(memory);
  EXPECT_EQ(first.get("witness"), std::nullopt);

  EXPECT_EQ(first.compare_and_set("witness", value_of(1), value_of(2)), Store::Value{})
      << "it holds nothing yet";
  EXPECT_EQ(first.compare_and_set("witness", std::nullopt, value_of(1)), value_of(1));
  EXPECT_EQ(second.get("witness"), value_of(1));
  EXPECT_EQ(second.compare_and_set("witness", std::nullopt, value_of(2)), value_of(1));
  for (uint64_t number = 1; number < 100; ++number) {
    SharedRegister& writer = number % 3 == 0 ? first : second;
    EXPECT_EQ(writer.compare_and_set("witness", value_of(number), value_of(number + 1)),
              value_of(number + 1));
  }
  first.set("witness", value_of(7));
  EXPECT_EQ(second.get("witness"), value_of(7));
}

TEST(SharedRegister, RefusesOtherMemoryAndLargeValues) {
  const FileDescriptor memory = SharedRegister::make(2);
  EXPECT_THROW(SharedRegister(make_sealed_memory("other", 100)), InvalidArgument);
  // Of the right size, which could change.
  const FileDescriptor unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.native(), lseek(memory.native(), 0, SEEK_END)), 0);
  EXPECT_THROW(SharedRegister{unsealed}, InvalidArgument);
  SharedRegister written(memory);
  EXPECT_THROW(written.set("witness", Store::Value(1 << 20)), OsError);
  EXPECT_EQ(written.get("witness"), std::nullopt);
}

TEST(SharedRegister, HasRoomForSoManyProcesses) {
  constexpr uint32_t kRanks = 2, kNewcomers = 1024;
  const FileDescriptor memory = SharedRegister::make(kRanks);
  for (uint32_t writer = 0; writer + 1 < kRanks + kNewcomers; ++writer)
    ASSERT_NO_THROW(SharedRegister{memory}) << writer;
  SharedRegister last(memory);
  EXPECT_EQ(last.compare_and_set("witness", std::nullopt, value_of(1)), value_of(1));
  EXPECT_EQ(last.compare_and_set("witness", value_of(1), value_of(2)), value_of(2));
  EXPECT_THROW(SharedRegister{memory}, OsError);
}

/// Writers that are killed at any point leave a whole value, which counts every write that was
/// acknowledged.
TEST(SharedRegister, OutlivesItsWriters) {
  const FileDescriptor memory = SharedRegister::make(kWriters);
  SharedRegister looked_at(memory);
  using Counts = std::array<std::atomic<uint64_t>, kWriters>;
  void* const shared =
      mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  Counts& written = *new (shared) Counts{};

  const auto write_for_ever = [&](uint32_t rank) {
    SharedRegister own(memory);
    for (;;) {
      const auto before = own.get("witness");
      const uint64_t number = number_in(before);
      if (::testing::Test::HasFailure()) _exit(1);
      const auto desired = value_of((counted(number) + 1) * kWriters + rank);
      if (own.compare_and_set("witness", before, desired) == desired) ++written[rank];
    }
  };
  uint64_t killed = 0;
  for (int round = 0; round < 25; ++round) {
    std::array<pid_t, kWriters> writers{};
    for (uint32_t rank = 0; rank < kWriters; ++rank) {
      writers[rank] = fork();
      if (writers[rank] == 0) write_for_ever(rank);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(3 + round));
    for (const pid_t writer : writers) {
      kill(writer, SIGKILL);
      int status = 0;
      waitpid(writer, &status, 0);
      ASSERT_TRUE(WIFSIGNALED(status)) << "it saw a torn value";
      EXPECT_EQ(WTERMSIG(status), SIGKILL);
      ++killed;
    }
    const uint64_t number = counted(number_in(looked_at.get("witness")));
    uint64_t acknowledged = 0;
    for (const auto& count : written) acknowledged += count;
    // A writer that was killed may not have counted its last write.
    EXPECT_GE(number, acknowledged);
    EXPECT_LE(number, acknowledged + killed);
  }
  EXPECT_GT(counted(number_in(looked_at.get("witness"))), 100u);
  munmap(shared, sizeof(Counts));
}

}  // namespace
}  // namespace tokenyard::control
