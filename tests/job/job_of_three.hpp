/// A job of three ranks, which meet in a folder of their own.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <stdexcept>
#include <string>

#include "fabric/ranks.hpp"
#include "tokenyard/job.hpp"

namespace tokenyard::test {

/// A latch whose waits throw if they are not over in time, or once a rank of the test has failed.
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
    all_came_.wait_for(lock, std::chrono::seconds(90),
                       [this] { return missing_ <= 0 || has_failed_; });
    if (missing_ <= 0) return;
    throw std::runtime_error(has_failed_ ? "another rank of the test has failed"
                                         : "a rank of the test has not come");
  }
  /// Ends all waits: a rank that has failed does not come.
  void fail() {
    {
      const std::lock_guard lock(mutex_);
      has_failed_ = true;
    }
    all_came_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_came_;
  ptrdiff_t missing_;
  bool has_failed_ = false;
};

/// Calls on_every_rank. Once a rank throws, nobody waits at the meetings any longer.
inline void on_ranks_that_meet(uint32_t ranks, std::initializer_list<Meeting*> meetings,
                               const std::function<void(uint32_t)>& body) {
  tokenyard::on_every_rank(ranks, [&](uint32_t rank) {
    try {
      body(rank);
    } catch (...) {
      for (Meeting* const meeting : meetings) meeting->fail();
      throw;
    }
  });
}

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
    // Ranks of these tests leave: nobody is lost because the machine stands still for a while.
    options.silence = std::chrono::seconds(60);
    return options;
  }

 private:
  std::filesystem::path directory_;
};

}  // namespace tokenyard::test
