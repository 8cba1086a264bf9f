#include "base/mapping.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {
namespace {

constexpr size_t kPage = 4096;

/// Returns whether every page of the range is mapped.
bool is_mapped(const std::byte* base, size_t bytes) {
  std::vector<unsigned char> pages(bytes / kPage);
  return mincore(const_cast<std::byte*>(base), bytes, pages.data()) == 0;
}

TEST(Mapping, IsUnmappedByItsLastOwner) {
  const std::byte* base = nullptr;
  {
    Mapping first = Mapping::anonymous(4 * kPage);
    base = first.base();
    ASSERT_TRUE(is_mapped(base, 4 * kPage));
    Mapping second = std::move(first);
    EXPECT_FALSE(first);
    EXPECT_EQ(first.bytes(), 0u);
    EXPECT_EQ(second.base(), base);
    Mapping third = Mapping::counted(kPage);
    third = std::move(second);
    EXPECT_EQ(third.bytes(), 4 * kPage);
    EXPECT_TRUE(is_mapped(base, 4 * kPage));
  }
  EXPECT_FALSE(is_mapped(base, kPage));
}

TEST(Mapping, AssignmentUnmapsWhatWasThereBefore) {
  Mapping mapping = Mapping::anonymous(kPage);
  const std::byte* const before = mapping.base();
  mapping = Mapping();
  EXPECT_FALSE(mapping);
  EXPECT_FALSE(is_mapped(before, kPage));
}

TEST(Mapping, IsRefusedBySize) {
  for (Mapping (*make)(size_t) :
       {Mapping::anonymous, Mapping::counted, Mapping::with_children, Mapping::reserved}) {
    try {
      make(std::numeric_limits<size_t>::max());
      FAIL() << "mapped all addresses";
    } catch (const OsError& error) {
      EXPECT_EQ(error.code, ENOMEM);
    }
  }
}

TEST(Mapping, IsSharedWithChildrenForkedLater) {
  const Mapping mapping = Mapping::with_children(kPage);
  const pid_t child = fork();
  if (child == 0) {
    *mapping.base() = std::byte{7};
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(*mapping.base(), std::byte{7});
}

TEST(Mapping, ReservedAddressesTakePartsOfAFileInAnyOrder) {
  const FileDescriptor file(memfd_create("mapping_test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.native(), 2 * kPage), 0);
  const Mapping whole = Mapping::shared(file.native(), 2 * kPage);
  Mapping swapped = Mapping::reserved(2 * kPage);
  swapped.map_file(0, kPage, file.native(), kPage);
  swapped.map_file(kPage, kPage, file.native(), 0);
  whole.base()[0] = std::byte{1};
  whole.base()[kPage] = std::byte{2};
  EXPECT_EQ(swapped.base()[kPage], std::byte{1});
  EXPECT_EQ(swapped.base()[0], std::byte{2});
}

}  // namespace
}  // namespace tokenyard
