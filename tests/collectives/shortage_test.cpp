/// Shortages of memory, descriptors or ports. No rank crashes and none hangs.
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <set>

#include "collectives/control_group.hpp"
#include "collectives/elastic_job.hpp"
#include "collectives/resource_limit.hpp"
#include "collectives/transports/cgroup_memory_limit.hpp"
#include "fabric/ranks.hpp"
#include "net/connection.hpp"
#include "simt/sanitizers.hpp"

namespace tokenyard::collectives {
namespace {

using namespace std::chrono_literals;

TEST(Shortage, RankWithoutSharedMemoryTakesPartAllTheSame) {
  ElasticJob job(4);
  job.on_start([](uint32_t rank) {
    const rlimit none{4096, 4096};
    if (rank != 1) return;
    testing::promise(setrlimit(RLIMIT_FSIZE, &none) == 0, "setrlimit");
  });
  job.start();
  job.await_progress({0, 1, 2, 3});
  // In the next epoch it is refused again.
  job.signal(3, SIGKILL);
  job.await_members({0, 1, 2}, 3);
  job.await_progress({0, 1, 2});
  job.finish({0, 1, 2});
}

/// Returns the number of shared segments mapped in this process.
size_t segments_mapped() {
  std::ifstream maps("/proc/self/maps");
  size_t found = 0;
  for (std::string line; std::getline(maps, line);) {
    found += line.find("tokenyard-collectives") != std::string::npos;
  }
  return found;
}

// Exceeding such a limit kills the process, so no rank may try.
TEST(Shortage, RankInAFullControlGroupTakesPartAllTheSame) {
#ifdef TOKENYARD_TSAN
  GTEST_SKIP() << "ThreadSanitizer's own memory would count, and end the rank";
#endif
  const ControlGroup group(size_t{64} << 20);
  if (!group.exists()) GTEST_SKIP() << "needs to make a memory control group (version 1, root)";
  ElasticJob job(3);
  job.diary().elements = 1024;  // there is memory for those, but not for a segment
  job.on_start([&](uint32_t rank) {
    if (rank != 0) return;  // rank 0 makes the segments of all its pairs
    group.enter();
    constexpr size_t kPiece = 64 << 10, kRoom = size_t{768} << 10;
    static std::vector<std::vector<char>> ballast;
    while (cgroup_memory_limit() > kRoom) ballast.emplace_back(kPiece, 1);
    std::thread([&job] {
      await("operations without segments", [&] { return job.done(0) >= 8; });
      if (segments_mapped() > 0) std::terminate();  // which the test sees
      ballast.clear();
    }).detach();
  });
  job.start();
  job.await_progress({0, 1, 2});
  // There is memory again in the next epoch.
  job.signal(2, SIGKILL);
  job.await_members({0, 1}, 2);
  job.await_progress({0, 1});
  job.finish({0, 1});
}

TEST(Shortage, TooFewDescriptorsAreAnErrorOrEnough) {
  const ElasticJob place(1);
  RankProcesses alone(1, [&](uint32_t) {
    const rlim_t used = no_more_descriptors();
    bool worked = false;
    for (rlim_t more = 0; more < 40 && !worked; ++more) {
      const ResourceLimit limit(RLIMIT_NOFILE, used + more);
      CollectivesOptions options = place.options(0);
      options.timeout = 200ms;
      try {
        Collectives::connect(options)->world().barrier().wait();
        worked = true;
      } catch (const Error&) {
        // The error names the refused resource.
      }
    }
    testing::promise(worked, "40 descriptors are not enough");
    testing::promise(no_more_descriptors() == used, "a failed connect has kept descriptors");
  });
  EXPECT_EQ(alone.wait(0), 0);
}

TEST(Shortage, PortOfTheStoreIsTakenByAnotherProgram) {
  // It answers everybody, in its own protocol.
  asio::io_context io;
  asio::ip::tcp::acceptor other(io, {asio::ip::address_v4::loopback(), 0});
  std::atomic<bool> over = false;
  std::thread answering([&] {
    while (!over) {
      net::TcpSocket customer = other.accept();
      asio::error_code ignored;
      asio::write(customer, asio::buffer(std::string("HTTP/1.1 400 Bad Request\r\n\r\n")), ignored);
    }
  });
  CollectivesOptions options = ElasticJob(1).options(0);
  options.store = fmt::format("tcp://127.0.0.1:{}", other.local_endpoint().port());
  options.timeout = 200ms;
  try {
    Collectives::connect(options);
    ADD_FAILURE() << "it has found a store";
  } catch (const OsError& error) {
    EXPECT_NE(std::string(error.what()).find("does not speak our protocol"), std::string::npos)
        << error.what();
  }
  over = true;
  net::TcpSocket last(io);
  last.connect(other.local_endpoint());
  answering.join();
}

/// Resources of a process that could leak.
struct Holdings {
  static size_t entries(const char* directory) {
    const std::filesystem::directory_iterator all(directory), end;
    return static_cast<size_t>(std::distance(all, end));
  }
  size_t descriptors = entries("/proc/self/fd");
  size_t threads = entries("/proc/self/task");
  size_t segments = segments_mapped();
  bool operator==(const Holdings&) const = default;
};

TEST(Shortage, NothingIsLeftOverWhenCollectivesEnd) {
  const ElasticJob place(2);
  std::optional<Holdings> before;
  constexpr int kCycles = 1000;
  for (int cycle = 0; cycle < kCycles; ++cycle) {
    on_every_rank(2, [&](uint32_t rank) {
      const auto collectives = Collectives::connect(place.options(rank));
      collectives->world().barrier().wait();
    });
    if (cycle == 0) before.emplace();  // one-time allocations are made by now
  }
  const Holdings after;
  EXPECT_EQ(after.descriptors, before->descriptors);
  EXPECT_EQ(after.threads, before->threads);
  EXPECT_EQ(after.segments, before->segments);
  EXPECT_EQ(after.segments, 0u);
}

}  // namespace
}  // namespace tokenyard::collectives
