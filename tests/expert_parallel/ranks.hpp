/// Runs a test's body on every rank of a world, one thread per rank, on the device under test.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tokenyard/world.hpp"
#include "world/in_process.hpp"

namespace tokenyard::test {

/// The exception of each rank, or null. A rank without a world is absent.
using Outcomes = std::vector<std::exception_ptr>;
using Body = std::function<void(World&)>;

inline Outcomes run_ranks(const std::vector<std::unique_ptr<World>>& worlds, const Body& body) {
  Outcomes outcomes(worlds.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < worlds.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        if (worlds[rank]) body(*worlds[rank]);
      } catch (...) {
        outcomes[rank] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

inline std::string message_of(const std::exception_ptr& outcome) {
  if (!outcome) return "nothing thrown";
  try {
    std::rethrow_exception(outcome);
  } catch (const std::exception& error) {
    return error.what();
  }
}

inline void expect_none_failed(const Outcomes& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank)
    EXPECT_FALSE(outcomes[rank]) << "rank " << rank << ": " << message_of(outcomes[rank]);
}

/// Returns the error of a rank, which must be of type E.
template <class E>
E error_of(const std::exception_ptr& outcome) {
  if (!outcome) throw std::logic_error("nothing was thrown");
  try {
    std::rethrow_exception(outcome);
  } catch (const E& error) {
    return error;
  } catch (const std::exception& error) {
    throw std::logic_error(std::string("another error: ") + error.what());
  }
}

/// Tests on every kind of device; absent devices are skipped.
class OnDevice : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "host") return;
    try {
      worlds(1);
    } catch (const Unsupported& error) {
      GTEST_SKIP() << error.what();
    }
  }

  std::vector<std::unique_ptr<World>> worlds(uint32_t ranks,
                                             const std::vector<uint32_t>& absent = {}) const {
    return in_process_without(absent, ranks, GetParam(), small());
  }

  static WorldOptions small() {
    return {.timeout = std::chrono::seconds(20), .arena_bytes = size_t{64} << 20};
  }
};

#define INSTANTIATE_ON_DEVICES(suite)                                  \
  INSTANTIATE_TEST_SUITE_P(, suite, ::testing::Values("host", "cuda"), \
                           [](const auto& device) { return std::string(device.param); })

}  // namespace tokenyard::test
