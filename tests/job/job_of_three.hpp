/// A job of three ranks, which meet in a folder of their own.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <string>

#include "tokenyard/job.hpp"

namespace tokenyard::test {

/// A latch at which nobody waits for a rank that has failed: a wait that is not over in time
/// throws.
class Meeting {
 public:
  explicit Meeting(ptrdiff_t ranks) : missing_(ranks) {}

  void arrive_and_wait() {
    {
      const std::lock_guard lock(mutex_);
      --missing_;
    }
    all_came_.notify_all();
    wait();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    const bool all_came =
        all_came_.wait_for(lock, std::chrono::seconds(90), [this] { return missing_ <= 0; });
    if (!all_came) throw std::runtime_error("a rank of the test has not come");
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_came_;
  ptrdiff_t missing_;
};

class JobOfThree : public ::testing::Test {
 protected:
  JobOfThree() {
    std::string pattern = ::testing::TempDir() + "tokenyard-job-XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~JobOfThree() override { std::filesystem::remove_all(directory_); }

  JobOptions options(uint32_t rank) const {
    JobOptions options;
    options.store = "file:" + directory_.string();
    options.secret = "of this test";
    options.address = "127.0.0.1";
    options.rank = rank;
    options.size = 3;
    options.timeout = std::chrono::seconds(30);
    return options;
  }

 private:
  std::filesystem::path directory_;
};

}  // namespace tokenyard::test
