// Ranks use a plug-in, tested through the public classes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>
#include <thread>
#include <vector>

#include "collectives/transports/interconnect.hpp"
#include "tokenyard/collectives.hpp"

namespace tokenyard {
namespace {

namespace fs = std::filesystem;

CollectivesOptions options_of(const fs::path& folder, const std::string& interconnect) {
  CollectivesOptions options;
  options.store = "file:" + folder.string();
  options.secret = "between us";
  options.interconnect = interconnect;
  return options;
}

TEST(Interconnect, WhatIsMissingOrNoPluginIsRefused) {
  EXPECT_THROW(collectives::InterconnectPlugin("libtokenyard_nowhere.so"), Unsupported);
  EXPECT_THROW(collectives::InterconnectPlugin("libc.so.6"), Unsupported);
  const auto options = options_of(fs::temp_directory_path(), "libtokenyard_nowhere.so");
  EXPECT_THROW(Collectives::connect(options), Unsupported);
}

#ifndef TOKENYARD_UCX_PLUGIN
TEST(Interconnect, RanksOfSeveralHostsReduceOverUcx) {
  GTEST_SKIP() << "this machine has no UCX (Debian: libucx-dev)";
}
#else
constexpr uint32_t kRanks = 3;

void reduce_as(uint32_t rank, const fs::path& folder) {
  CollectivesOptions options = options_of(folder, TOKENYARD_UCX_PLUGIN);
  options.rank = rank;
  options.size = kRanks;
  options.address = "127.0.0.1";
  options.host = "host " + std::to_string(rank);
  const auto job = Collectives::connect(options);
  for (const size_t elements : {size_t{1}, size_t{1000}, size_t{1} << 20}) {
    std::vector<int64_t> values(elements), sums(elements);
    std::iota(values.begin(), values.end(), rank);
    std::iota(sums.begin(), sums.end(), 0);
    for (int64_t& sum : sums) sum = kRanks * sum + 0 + 1 + 2;
    job->world().all_reduce({values.data(), {elements}}, ReduceOp::sum).wait();
    EXPECT_TRUE(values == sums) << elements;
  }
  job->world().barrier().wait();
}

TEST(Interconnect, RanksOfSeveralHostsReduceOverUcx) {
  const fs::path folder =
      fs::temp_directory_path() / ("tokenyard-interconnect-" + std::to_string(getpid()));
  fs::create_directory(folder);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&folder, rank] {
      try {
        reduce_as(rank, folder);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  fs::remove_all(folder);
}
#endif

}  // namespace
}  // namespace tokenyard
