// Speed of channels between two processes, each on a core of its own if there are two. Prints;
// checks only that the bytes are right.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>

#include "collectives/wire_processes.hpp"
#include "collectives/wire_ranks.hpp"

namespace tokenyard::collectives {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void pin_to(uint32_t core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core % std::thread::hardware_concurrency(), &cores);
  (void)sched_setaffinity(0, sizeof cores, &cores);
}

/// Rank 0 sends, rank 1 sends back as many bytes as asked; returns the median round in seconds.
double round_time(Transport& transport, Channel& channel, Slot self, size_t bytes,
                  size_t reply_bytes, uint32_t rounds) {
  auto message = bytes_of_seed(std::max(bytes, reply_bytes), 1);
  std::vector<double> times;
  for (uint32_t round = 0; round < rounds; ++round) {
    message[0] = static_cast<std::byte>(round);
    const auto begin = Clock::now();
    if (self == 0) {
      send_all(transport, channel, std::span(message).first(bytes));
      receive_all(transport, channel, std::span(message).first(reply_bytes));
    } else {
      receive_all(transport, channel, std::span(message).first(bytes));
      if (message[0] != static_cast<std::byte>(round)) throw std::runtime_error("wrong bytes");
      send_all(transport, channel, std::span(message).first(reply_bytes));
    }
    times.push_back(seconds_since(begin));
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void measure(const std::string& name, bool force_tcp) {
  SharedBoard<ContactBoard> board;
  RankProcesses processes(2, [&](uint32_t rank) {
    pin_to(rank);
    const auto transport = join_wire(
        *board.operator->(), view_of(2), rank,
        WireOptions{.self = {}, .secret = {}, .host = {}, .address = {}, .force_tcp = force_tcp});
    const auto channel = transport->channel(0, Lane::collective, 1 - rank);
    round_time(*transport, *channel, rank, 1, 1, 1);
    const double small = round_time(*transport, *channel, rank, 8, 8, 500) / 2;
    const double kilo = round_time(*transport, *channel, rank, 4096, 4096, 300) / 2;
    const double mega = round_time(*transport, *channel, rank, 1 << 20, 1, 50);
    const double large = round_time(*transport, *channel, rank, 64 << 20, 1, 3);
    if (rank != 0) return;
    fmt::print(
        stderr, "{}: 8 B {:.2f} us, 4 KB {:.2f} us one way; 1 MB {:.1f} GB/s, 64 MB {:.1f} GB/s\n",
        name, small * 1e6, kilo * 1e6, (1 << 20) / mega * 1e-9, double{64 << 20} / large * 1e-9);
  });
  EXPECT_EQ(processes.wait(0), 0);
  EXPECT_EQ(processes.wait(1), 0);
}

TEST(WireSpeed, SharedMemory) {
  measure("shared memory", false);
}

TEST(WireSpeed, Tcp) {
  measure("TCP, loopback", true);
}

}  // namespace
}  // namespace tokenyard::collectives
