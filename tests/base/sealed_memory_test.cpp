// Shared memory whose size cannot change, and what is taken for it.
#include "base/sealed_memory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tokenyard/error.hpp"

namespace tokenyard {
namespace {

constexpr size_t kBytes = 8192;

FileDescriptor memory_with(int seals) {
  FileDescriptor memory(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(memory.native(), kBytes), 0);
  if (seals != 0) {
    EXPECT_EQ(fcntl(memory.native(), F_ADD_SEALS, seals), 0);
  }
  return memory;
}

TEST(SealedMemory, KeepsItsSizeAndItsSeals) {
  const FileDescriptor memory = make_sealed_memory("test", kBytes);
  EXPECT_EQ(sealed_bytes(memory), kBytes);
  EXPECT_EQ(ftruncate(memory.native(), kBytes / 2), -1);
  EXPECT_EQ(ftruncate(memory.native(), kBytes * 2), -1);
  EXPECT_EQ(fcntl(memory.native(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(sealed_bytes(memory), kBytes);
}

TEST(SealedMemory, OtherMemoryIsNotTakenForIt) {
  EXPECT_EQ(sealed_bytes(memory_with(0)), std::nullopt);
  EXPECT_EQ(sealed_bytes(memory_with(F_SEAL_SHRINK)), std::nullopt);
  EXPECT_EQ(sealed_bytes(memory_with(F_SEAL_GROW)), std::nullopt);
  EXPECT_EQ(sealed_bytes(memory_with(F_SEAL_SHRINK | F_SEAL_GROW)), kBytes);
}

TEST(SealedMemory, AnotherKindOfFileIsNotTakenForIt) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor from(ends[0]), to(ends[1]);
  EXPECT_EQ(sealed_bytes(from), std::nullopt);
  EXPECT_THROW(sealed_bytes(FileDescriptor()), OsError);
}

}  // namespace
}  // namespace tokenyard
