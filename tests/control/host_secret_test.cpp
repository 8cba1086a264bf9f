/// The processes of a user share a secret, and nobody else can have put it there.
#include "control/host_secret.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/environment.hpp"
#include "fabric/ranks.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::control {
namespace {

class HostSecret : public ::testing::Test {
 protected:
  HostSecret() {
    std::string pattern = ::testing::TempDir() + "tokenyard-secret-XXXXXX";
    runtime_ = mkdtemp(pattern.data());
    setenv("XDG_RUNTIME_DIR", runtime_.c_str(), 1);
  }
  ~HostSecret() override {
    std::filesystem::remove_all(runtime_);
    if (before_) {
      setenv("XDG_RUNTIME_DIR", before_->c_str(), 1);
    } else {
      unsetenv("XDG_RUNTIME_DIR");
    }
  }
  std::filesystem::path folder() const { return runtime_ / "tokenyard"; }
  std::filesystem::path file() const { return folder() / "secret"; }
  std::string written(const std::string& text, mode_t mode = 0600) const {
    const std::filesystem::path path = runtime_ / "given";
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }

  std::filesystem::path runtime_;
  const std::optional<std::string> before_ = runtime_directory();
};

TEST_F(HostSecret, NeedsNoRuntimeFolderOfAnotherMachine) {
  setenv("XDG_RUNTIME_DIR", (runtime_ / "of" / "another").c_str(), 1);
  const std::string seen = host_secret();
  EXPECT_EQ(seen.size(), 64u);
  EXPECT_EQ(host_secret(), seen);
}

TEST_F(HostSecret, NamesTheFileOfASecretThatIsNone) {
  (void)host_secret();
  std::ofstream(file(), std::ios::trunc) << "";
  try {
    (void)host_secret();
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.seen, "0 bytes in " + file().string());
  }
}

TEST_F(HostSecret, IsDrawnOnceByWhoeverComesFirst) {
  std::vector<std::string> seen(8);
  on_every_rank(8, [&](uint32_t rank) { seen[rank] = host_secret(); });
  EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), 1u);
  EXPECT_EQ(seen[0].size(), 64u);
  EXPECT_EQ(host_secret(), seen[0]);
  struct stat status {};
  ASSERT_EQ(stat(file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder()), {}), 1)
      << "unfinished files are left";
  std::filesystem::remove(file());
  EXPECT_NE(host_secret(), seen[0]);
}

TEST_F(HostSecret, IsNotTakenFromAFolderOrFileThatOthersMayRead) {
  host_secret();
  chmod(file().c_str(), 0644);
  EXPECT_THROW(host_secret(), InvalidArgument);
  chmod(file().c_str(), 0600);
  chmod(folder().c_str(), 0770);
  EXPECT_THROW(host_secret(), InvalidArgument);
  chmod(folder().c_str(), 0700);
  EXPECT_NO_THROW(host_secret());
}

TEST_F(HostSecret, FollowsNoLink) {
  std::filesystem::create_directory(folder());
  chmod(folder().c_str(), 0700);
  std::filesystem::create_symlink(written(std::string(64, 'a')), file());
  EXPECT_THROW(host_secret(), OsError);
}

TEST_F(HostSecret, IsReadFromAFileThatIsGiven) {
  EXPECT_EQ(secret_in_file("file", written("0123456789abcdef\n")), "0123456789abcdef");
  EXPECT_THROW(secret_in_file("file", written("short\n")), InvalidArgument);
  EXPECT_THROW(secret_in_file("file", written("0123456789abcdef", 0640)), InvalidArgument);
  EXPECT_THROW(secret_in_file("file", "/nonexistent"), OsError);
  try {
    secret_in_file("file", written("0123456789abcdef", 0640));
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()).find("0123456789abcdef"), std::string::npos);
  }
}

}  // namespace
}  // namespace tokenyard::control
