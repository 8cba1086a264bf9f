#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <vector>

#include "tokenyard/job.hpp"
#include "tokenyard/world.hpp"

// The calls that it tests are deprecated.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace tokenyard {
namespace {

/// Variables that a launcher sets, for the duration of a test.
class FromEnvironment : public testing::Test {
 protected:
  FromEnvironment() { forget(); }
  ~FromEnvironment() override { forget(); }
  static void forget() {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT",
                             "TOKENYARD_SECRET", "TOKENYARD_SECRET_FILE"}) {
      unsetenv(name);
    }
  }
  static void set(const char* name, const char* value) { setenv(name, value, 1); }
  /// Returns the variable that the error names, and its value.
  static std::string complaint() {
    try {
      (void)Rendezvous::from_environment();
    } catch (const InvalidArgument& error) {
      return error.argument + ": " + error.seen;
    }
    return "nothing";
  }
};

TEST_F(FromEnvironment, TakesWhatALauncherSets) {
  set("RANK", "5");
  set("WORLD_SIZE", "8");
  set("LOCAL_RANK", "1");
  set("MASTER_ADDR", "node7");
  set("MASTER_PORT", "29500");
  const Rendezvous where = Rendezvous::from_environment();
  EXPECT_EQ(where.rank, 5u);
  EXPECT_EQ(where.size, 8u);
  EXPECT_EQ(where.local_rank, 1u);
  EXPECT_EQ(where.host, "node7");
  EXPECT_EQ(where.port, 29500);
}

TEST_F(FromEnvironment, FillsInWhatMayBeLeftOut) {
  set("RANK", "1");
  set("WORLD_SIZE", "2");
  set("MASTER_PORT", "1234");
  set("MASTER_ADDR", "");
  const Rendezvous where = Rendezvous::from_environment();
  EXPECT_EQ(where.local_rank, 1u);
  EXPECT_EQ(where.host, "127.0.0.1");
  EXPECT_EQ(where.secret, "");
}

TEST_F(FromEnvironment, TakesASecretThatNobodyElseMayRead) {
  set("RANK", "1");
  set("WORLD_SIZE", "2");
  set("MASTER_PORT", "1234");
  set("TOKENYARD_SECRET", " 0123456789abcdef ");
  EXPECT_EQ(Rendezvous::from_environment().secret, "0123456789abcdef");
  const std::string path = testing::TempDir() + "tokenyard-rendezvous-secret";
  std::ofstream(path) << "fedcba9876543210\n";
  chmod(path.c_str(), 0600);
  set("TOKENYARD_SECRET_FILE", path.c_str());
  EXPECT_EQ(complaint(), "TOKENYARD_SECRET: another one");
  unsetenv("TOKENYARD_SECRET");
  EXPECT_EQ(Rendezvous::from_environment().secret, "fedcba9876543210");
  chmod(path.c_str(), 0644);
  EXPECT_EQ(complaint().substr(0, 21), "TOKENYARD_SECRET_FILE");
  unlink(path.c_str());
  unsetenv("TOKENYARD_SECRET_FILE");
  set("TOKENYARD_SECRET", "short");
  EXPECT_EQ(complaint(), "TOKENYARD_SECRET: 5 bytes");
  // A script whose variable is empty must not fall back to the secret of the host's processes.
  set("TOKENYARD_SECRET", "");
  EXPECT_EQ(complaint(), "TOKENYARD_SECRET: 0 bytes");
}

TEST_F(FromEnvironment, NamesWhatIsMissingOrNoNumber) {
  EXPECT_EQ(complaint(), "RANK: nothing");
  set("RANK", "0");
  EXPECT_EQ(complaint(), "WORLD_SIZE: nothing");
  set("WORLD_SIZE", "-2");
  EXPECT_EQ(complaint(), "WORLD_SIZE: '-2'");
  set("WORLD_SIZE", "2x");
  EXPECT_EQ(complaint(), "WORLD_SIZE: '2x'");
  set("WORLD_SIZE", "2");
  set("MASTER_PORT", "70000");
  EXPECT_EQ(complaint(), "MASTER_PORT: '70000'");
}

TEST(OldWorldConnect, MakesAJobAndAWorld) {
  const auto world = World::connect({.rank = 0, .size = 1}, "host", {.arena_bytes = 1 << 16});
  world->barrier("alone");
  EXPECT_EQ(world->job()->active_ranks(), std::vector<uint32_t>{0});
}

}  // namespace
}  // namespace tokenyard
