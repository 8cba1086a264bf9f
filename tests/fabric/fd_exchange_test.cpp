#include "fabric/fd_exchange.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "collectives/resource_limit.hpp"
#include "fabric/in_process_mesh.hpp"
#include "fabric/manual_accelerator.hpp"
#include "fabric/ranks.hpp"

namespace tokenyard {
namespace {

constexpr uint32_t kRanks = 2;
constexpr std::chrono::seconds kLong{600};
/// Time for descriptors to come free; longer than the exchange takes on any machine.
constexpr std::chrono::seconds kTimeout{3};

/// The ranks, threads of this process, pass one another its standard input. A rank that fails
/// leaves, as a World that cannot be created does.
std::vector<std::exception_ptr> exchange() {
  auto ends = InProcessMesh::make(kRanks);
  return run_ranks(kRanks, [&](uint32_t rank) {
    const auto mesh = std::move(ends[rank]);
    ManualAccelerator accelerator;
    accelerator.while_waiting = [&, begin = Clock::now()]() mutable {
      if (Clock::now() - begin > kTimeout) accelerator.skip(kLong);
    };
    AbortFlag abort_flag(accelerator);
    Bootstrap talk(mesh, Membership::of(*mesh), accelerator, abort_flag);
    const auto all = exchange_fds(talk, STDIN_FILENO, "files", accelerator.now() + kLong);
    struct stat mine {
    }, theirs{};
    ASSERT_EQ(fstat(STDIN_FILENO, &mine), 0);
    ASSERT_EQ(fstat(all[1 - rank].native(), &theirs), 0);
    EXPECT_EQ(mine.st_ino, theirs.st_ino);
    talk.barrier("both have looked", accelerator.now() + kLong);
  });
}

TEST(FdExchange, FilesArrive) {
  for (const auto& failure : exchange()) EXPECT_FALSE(failure);
}

// Runs with fewer descriptors than the exchange needs, so that they run out at each step in turn.
TEST(FdExchange, WhoIsShortOfDescriptorsSaysSo) {
  bool enough = false;
  for (rlim_t more = 0; !enough; ++more) {
    ASSERT_LT(more, 64u);
    std::vector<std::exception_ptr> failures;
    {
      const collectives::ResourceLimit few(RLIMIT_NOFILE,
                                           collectives::no_more_descriptors() + more);
      failures = exchange();
    }
    enough = true;
    bool said = false;
    for (const auto& failure : failures) {
      if (!failure) continue;
      enough = false;
      said |= holds<OsError>(failure, [](const OsError& error) { EXPECT_EQ(error.code, EMFILE); });
    }
    EXPECT_TRUE(enough || said) << more;
  }
}

}  // namespace
}  // namespace tokenyard
