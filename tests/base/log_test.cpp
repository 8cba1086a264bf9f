/// Lines on stderr: which are written, and that none makes its thread wait.
#include "base/log.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <string>

#include "tokenyard/error.hpp"

namespace tokenyard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

/// Puts a pipe in the place of stderr.
class LogLines : public ::testing::Test {
 protected:
  LogLines() : stderr_before_(dup(STDERR_FILENO)) {
    EXPECT_EQ(pipe(ends_.data()), 0);
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    dup2(ends_[1], STDERR_FILENO);
  }
  ~LogLines() override {
    unsetenv("TOKENYARD_LOG");
    dup2(stderr_before_, STDERR_FILENO);
    for (const int descriptor : {ends_[0], ends_[1], stderr_before_}) close(descriptor);
  }
  static void choose(const char* level) { setenv("TOKENYARD_LOG", level, 1); }
  std::string written() const {
    std::array<char, 1 << 16> bytes{};
    std::string all;
    for (;;) {
      const ssize_t count = read(ends_[0], bytes.data(), bytes.size());
      if (count <= 0) return all;
      all.append(bytes.data(), static_cast<size_t>(count));
    }
  }

 private:
  std::array<int, 2> ends_{};
  int stderr_before_;
};

TEST_F(LogLines, HaveRankAndEpoch) {
  const Log log(3);
  log.write(LogLevel::warning, 7, "rank 1 is slow");
  EXPECT_THAT(written(), MatchesRegex("[-0-9]+ [.:0-9]+ tokenyard warning rank 3 epoch 7: "
                                      "rank 1 is slow\n"));
}

TEST_F(LogLines, BelowTheChosenLevelAreLeftOut) {
  const auto heard = [&](const char* level) {
    if (level != nullptr) choose(level);
    const Log log(0);
    log.write(LogLevel::debug, 1, "detail");
    log.write(LogLevel::info, 1, "news");
    log.write(LogLevel::warning, 1, "trouble");
    const std::string all = written();
    return all.find("detail") != all.npos ? 3 : all.find("news") != all.npos ? 2 : 1;
  };
  EXPECT_EQ(heard(nullptr), 1);
  EXPECT_EQ(heard("warning"), 1);
  EXPECT_EQ(heard("info"), 2);
  EXPECT_EQ(heard("debug"), 3);
}

TEST_F(LogLines, UnknownLevelIsNamed) {
  choose("verbose");
  try {
    const Log log(0);
    FAIL() << "it was ignored";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument, "TOKENYARD_LOG");
    EXPECT_EQ(error.seen, "'verbose'");
    EXPECT_THAT(error.expected, HasSubstr("debug"));
  }
}

TEST_F(LogLines, NobodyWaitsForAReader) {
  const Log log(0);
  const std::string text(1000, 'x');
  for (int line = 0; line < 1000; ++line) log.write(LogLevel::warning, 1, text);
  const std::string before = written();
  EXPECT_LT(before.size(), 1000 * text.size());
  EXPECT_EQ(before.back(), '\n');
  log.write(LogLevel::warning, 1, "there is room again");
  EXPECT_THAT(written(), MatchesRegex("tokenyard: [0-9]+ lines were left out\n.*room again\n"));
}

TEST_F(LogLines, LongOneIsCut) {
  const Log log(0);
  log.write(LogLevel::warning, 1, std::string(10'000, 'x'));
  const std::string all = written();
  EXPECT_LE(all.size(), 4096u);
  EXPECT_TRUE(all.ends_with("x...\n"));
}

TEST_F(LogLines, ReaderThatIsGoneEndsNobody) {
  const Log log(0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int before = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  close(ends[0]);
  close(ends[1]);
  log.write(LogLevel::warning, 1, "nobody reads");
  dup2(before, STDERR_FILENO);
  close(before);
  EXPECT_THAT(written(), IsEmpty());
}

}  // namespace
}  // namespace tokenyard
