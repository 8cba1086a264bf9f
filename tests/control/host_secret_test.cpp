/// The processes of a user share a secret, and nobody else can have put it there.
#include "control/host_secret.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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

TEST_F(HostSecret, IsNotTakenFromAFileOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const std::string path = written("0123456789abcdef");
  ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
  EXPECT_THROW(secret_in_file("file", path), InvalidArgument);
}

// Root may write anywhere, so another user tries.
TEST_F(HostSecret, NamesTheFileThatItCannotMake) {
  constexpr uid_t kNobody = 65534;
  const uid_t user = geteuid() == 0 ? kNobody : geteuid();
  ASSERT_EQ(chown(runtime_.c_str(), user, -1), 0);
  std::filesystem::create_directory(folder());
  ASSERT_EQ(chown(folder().c_str(), user, -1), 0);
  ASSERT_EQ(chmod(folder().c_str(), 0500), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() != user && setresuid(user, user, user) != 0) _exit(3);
    try {
      (void)host_secret();
    } catch (const OsError& error) {
      const std::string begin = "open of " + file().string() + ".";
      _exit(std::string(error.what()).starts_with(begin) ? 0 : 2);
    } catch (...) {
    }
    _exit(1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  chmod(folder().c_str(), 0700);
  EXPECT_EQ(status, 0);
}

TEST_F(HostSecret, InTheEnvironmentIsOneSecret) {
  const SecretEnvironment before = SecretEnvironment::read();
  const std::string path = written("0123456789abcdef\n");
  setenv("TOKENYARD_SECRET_FILE", path.c_str(), 1);
  setenv("TOKENYARD_SECRET", "0123456789abcdef", 1);
  EXPECT_EQ(secret_in_environment(), "0123456789abcdef");
  setenv("TOKENYARD_SECRET", "another0123456789", 1);
  EXPECT_THROW(secret_in_environment(), InvalidArgument);
  unsetenv("TOKENYARD_SECRET");
  EXPECT_EQ(secret_in_environment(), "0123456789abcdef");
  unsetenv("TOKENYARD_SECRET_FILE");
  EXPECT_EQ(secret_in_environment(), std::nullopt);
  if (before.secret) setenv("TOKENYARD_SECRET", before.secret->c_str(), 1);
  if (before.file) setenv("TOKENYARD_SECRET_FILE", before.file->c_str(), 1);
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
