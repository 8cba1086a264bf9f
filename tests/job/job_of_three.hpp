/// A job of three ranks, which meet in a folder of their own.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tokenyard/job.hpp"

namespace tokenyard::test {

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
