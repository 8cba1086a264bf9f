#include "collectives/transports/segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "collectives/control_group.hpp"
#include "collectives/resource_limit.hpp"
#include "collectives/transports/cgroup_memory_limit.hpp"
#include "fabric/worlds.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {
namespace {

constexpr size_t kRing = 64 << 10;

FileDescriptor copy_of(const FileDescriptor& descriptor) {
  return FileDescriptor(fcntl(descriptor.native(), F_DUPFD_CLOEXEC, 0));
}

TEST(Segment, IsTheSameMemoryAtBothEnds) {
  Segment initiator = Segment::make(kRing);
  const Segment acceptor = Segment::adopt(initiator.take_descriptor(), kRing, initiator.file());
  initiator.ring(End::initiator).memory[0] = std::byte{1};
  initiator.ring(End::acceptor).memory[0] = std::byte{2};
  EXPECT_EQ(acceptor.ring(End::initiator).memory[0], std::byte{1});
  EXPECT_EQ(acceptor.ring(End::acceptor).memory[0], std::byte{2});
  initiator.header().taken.store(7);
  EXPECT_EQ(acceptor.header().taken.load(), 7u);
}

TEST(Segment, HasItsRingsTwiceInARow) {
  const Segment segment = Segment::make(kRing);
  for (const End end : {End::initiator, End::acceptor}) {
    const RingMemory ring = segment.ring(end);
    ring.memory[3] = std::byte{9};
    EXPECT_EQ(ring.memory[kRing + 3], std::byte{9});
    ring.memory[2 * kRing - 1] = std::byte{8};
    EXPECT_EQ(ring.memory[kRing - 1], std::byte{8});
  }
}

TEST(Segment, RoundsRingsUpToAPowerOfTwo) {
  EXPECT_EQ(Segment::make(1).ring_bytes(), 4096u);
  EXPECT_EQ(Segment::make(65537).ring_bytes(), 131072u);
}

TEST(Segment, HasItsPagesBeforeAnybodyTouchesThem) {
  Segment segment = Segment::make(kRing);
  const FileDescriptor descriptor = segment.take_descriptor();
  struct stat facts {};
  ASSERT_EQ(fstat(descriptor.native(), &facts), 0);
  EXPECT_GE(static_cast<size_t>(facts.st_blocks) * 512, 2 * kRing);
}

TEST(Segment, CannotShrink) {
  Segment segment = Segment::make(kRing);
  const FileDescriptor descriptor = segment.take_descriptor();
  EXPECT_EQ(ftruncate(descriptor.native(), 4096), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(Segment, IsNotAdoptedIfItIsAnother) {
  Segment right = Segment::make(kRing);
  Segment other = Segment::make(kRing);
  const FileDescriptor descriptor = right.take_descriptor();
  EXPECT_THROW(Segment::adopt(copy_of(descriptor), kRing, other.file()), InvalidArgument);
  EXPECT_THROW(Segment::adopt(copy_of(descriptor), 2 * kRing, right.file()), InvalidArgument);
  EXPECT_THROW(Segment::adopt(copy_of(descriptor), kRing - 1, right.file()), InvalidArgument);
  EXPECT_THROW(Segment::adopt(FileDescriptor(), kRing, right.file()), OsError);

  FileDescriptor unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.native(), 4096 + 2 * kRing), 0);
  struct stat facts {};
  ASSERT_EQ(fstat(unsealed.native(), &facts), 0);
  EXPECT_THROW(Segment::adopt(std::move(unsealed), kRing, facts.st_ino), InvalidArgument);
}

TEST(Segment, ThatCannotBeMappedLeavesNoMapping) {
  Segment segment = Segment::make(kRing);
  const FileDescriptor descriptor = segment.take_descriptor();
  const std::string file = fmt::format("/proc/self/fd/{}", descriptor.native());
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  FileDescriptor read_only(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  const auto before = mappings();
  try {
    Segment::adopt(std::move(read_only), kRing, segment.file());
    FAIL() << "mapped a file that cannot be written";
  } catch (const OsError& error) {
    EXPECT_EQ(error.code, EACCES);
  }
  EXPECT_EQ(mappings(), before);
}

TEST(Segment, IsRefusedNotKilledByAFileSizeLimit) {
  const ResourceLimit limit(RLIMIT_FSIZE, kRing);
  try {
    Segment::make(kRing);
    FAIL() << "made over the limit";
  } catch (const OsError& error) {
    EXPECT_EQ(error.code, EFBIG);
  }
}

TEST(Segment, IsRefusedByADescriptorLimit) {
  const ResourceLimit limit(RLIMIT_NOFILE, no_more_descriptors());
  try {
    Segment::make(kRing);
    FAIL() << "made over the limit";
  } catch (const OsError& error) {
    EXPECT_EQ(error.code, EMFILE);
  }
}

TEST(Segment, LeavesNothingBehind) {
  const auto count = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), {});
  };
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  Segment::make(kRing);
  const auto descriptors_before = count("/proc/self/fd");
  const auto mappings_before = mappings();
  for (int round = 0; round < 100; ++round) {
    Segment segment = Segment::make(kRing);
    const Segment moved = std::move(segment);
    EXPECT_NE(moved.ring(End::initiator).memory, nullptr);
  }
  EXPECT_EQ(count("/proc/self/fd"), descriptors_before);
  EXPECT_LE(mappings(), mappings_before + 1);  // malloc may have grown
}

/// A tree of control groups, as the kernel would show it.
class CgroupMemoryLimitTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(testing::TempDir()) / ("memory_room_" + std::to_string(getpid()));
    std::filesystem::create_directories(root_ / "a/b");
    write("membership", "0::/a/b\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& file, const std::string& text) {
    std::ofstream(root_ / file) << text;
  }
  size_t room() const { return cgroup_memory_limit(root_, root_ / "membership"); }

  std::filesystem::path root_;
};

TEST_F(CgroupMemoryLimitTest, IsEndlessWithoutALimit) {
  write("a/b/memory.max", "max\n");
  write("a/b/memory.current", "1000\n");
  EXPECT_EQ(room(), ~size_t{0});
}

TEST_F(CgroupMemoryLimitTest, IsTheTightestOnTheWayUp) {
  write("a/b/memory.max", "10000\n");
  write("a/b/memory.current", "1000\n");
  EXPECT_EQ(room(), 9000u);
  write("a/memory.max", "5000\n");
  write("a/memory.current", "4000\n");
  EXPECT_EQ(room(), 1000u);
}

TEST_F(CgroupMemoryLimitTest, CountsWhatTheKernelWouldGiveBack) {
  write("a/b/memory.max", "10000\n");
  write("a/b/memory.current", "9000\n");
  write("a/b/memory.stat", "anon 4000\nfile 5000\ninactive_file 3000\nactive_file 2000\n");
  EXPECT_EQ(room(), 4000u);
}

TEST_F(CgroupMemoryLimitTest, IsNothingOverTheLimit) {
  write("a/b/memory.max", "10000\n");
  write("a/b/memory.current", "12000\n");
  EXPECT_EQ(room(), 0u);
}

TEST_F(CgroupMemoryLimitTest, KnowsBothVersionsOfControlGroups) {
  std::filesystem::create_directories(root_ / "memory/c");
  write("membership", "9:cpu,memory:/c\n2:cpuset:/a\n0::/a/b\n");
  write("a/b/memory.max", "10000\n");
  write("a/b/memory.current", "1000\n");
  EXPECT_EQ(room(), 9000u);
  write("memory/c/memory.limit_in_bytes", "5000\n");
  write("memory/c/memory.usage_in_bytes", "4000\n");
  write("memory/c/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
  EXPECT_EQ(room(), 1500u);
}

TEST(Segment, IsRefusedNotKilledByAControlGroup) {
  const ControlGroup group(size_t{32} << 20);
  if (!group.exists()) GTEST_SKIP() << "needs to make a memory control group (version 1, root)";
  RankProcesses child(1, [&](uint32_t) {
    group.enter();
    const Segment fits = Segment::make(1 << 20);
    try {
      Segment::make(16 << 20);
    } catch (const OsError& error) {
      if (error.code != ENOMEM) throw;
      return;
    }
    throw std::runtime_error("made over the limit");
  });
  EXPECT_EQ(child.wait(0), 0);
}

}  // namespace
}  // namespace tokenyard::collectives
