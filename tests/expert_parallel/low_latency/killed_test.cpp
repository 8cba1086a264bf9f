/// Real processes killed or stopped during low-latency batches: the others' results are exact
/// without them, and no other rank is masked.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "expert_parallel/low_latency/survivors.hpp"
#include "fabric/meeting_place.hpp"
#include "fabric/worlds.hpp"

namespace tokenyard::test {
namespace {

using std::chrono::milliseconds;

const LowLatencyCase kCase{.shape = {.ranks = 4, .experts = 8, .hidden = 1024, .topk = 4},
                           .tokens = {12, 9, 16, 10},
                           .picking = {.none = 0.1}};
constexpr uint32_t kBatches = 12;

/// When the victim is struck.
enum class When { before_it_sends, in_a_dispatch, after_a_dispatch, in_a_combine, any_time };

struct Fault {
  When when;
  int signal;
  milliseconds timeout;  ///< per call: long if the loss is noticed, short if it is not
};

void strike(int signal) {
  raise(signal);
}

void strike_soon(int signal, uint32_t seed) {
  const pid_t self = getpid();
  std::thread([=] {
    // Long enough to be somewhere within the batches, at an arbitrary point.
    std::this_thread::sleep_for(std::chrono::microseconds(seed * 7919 % 20000));
    ::kill(self, signal);
  }).detach();
}

/// Makes memory from `after` bytes on unreadable: a kernel that reads that far dies.
void make_unreadable(const void* from, size_t bytes, size_t after) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(from) + after + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(from) + bytes) / page * page;
  if (begin >= end || mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_NONE) != 0)
    throw WrongBatch("no page to strike at");
}

void run_batches(World& world, const std::set<uint32_t>& victims, const Fault& fault) {
  LowLatency exchange(world, kCase.options());
  Survivor survivor(exchange, *victims.begin());
  const bool victim = victims.contains(world.rank());
  world.barrier("all are here");
  if (victim && fault.when == When::any_time) strike_soon(fault.signal, world.rank() + 3);
  for (uint32_t batch = 0; batch < kBatches; ++batch) {
    LowLatencyCase of = kCase;
    of.seed = batch + 1;
    const bool hooks = batch % 2 == 1;
    const bool struck = victim && batch == 3;
    if (struck && fault.when == When::before_it_sends) strike(fault.signal);
    SurvivorBatch step(survivor, of, false);
    step.call.timeout = fault.timeout;
    if (struck && fault.when == When::in_a_dispatch)
      step.before_dispatch = [](const void* x, size_t bytes) {
        make_unreadable(x, bytes, bytes / 2);
      };
    if (struck && fault.when == When::in_a_combine)
      // Only the first few rows of its second expert can be read.
      step.before_combine = [](const void* y, size_t bytes) {
        make_unreadable(y, bytes, bytes / 2 + bytes / 32);
      };
    step.dispatch(hooks);
    if (struck && fault.when == When::after_a_dispatch) {
      exchange.wait();
      strike(fault.signal);
    }
    if (hooks) step.receive_dispatch();
    step.combine(hooks);
    if (hooks) step.receive_combine();
  }
  if (victim) return;  // It woke up, or was never struck: no rank communicates with it.
  survivor.require_only_the_stopped_masked();
  // Every rank has noticed by now, and a barrier does not wait for a dead rank.
  if (fault.signal != SIGSTOP && survivor.masks_the_stopped()) exchange.close();
}

void fault(const Fault& fault, uint32_t victim) {
  const uint16_t port = free_port();
  RankProcesses ranks(kCase.shape.ranks, [&](uint32_t rank) {
    WorldOptions options;
    options.timeout = std::chrono::seconds(60);
    options.arena_bytes = 8 << 20;
    const auto world =
        connect_world({.port = port, .rank = rank, .size = kCase.shape.ranks}, "host", options);
    run_batches(*world, {victim}, fault);
  });
  for (uint32_t rank = 0; rank < kCase.shape.ranks; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(ranks.wait(rank), 0) << "rank " << rank;
  }
  const bool in_the_middle = fault.when == When::in_a_dispatch || fault.when == When::in_a_combine;
  EXPECT_TRUE(!in_the_middle || ranks.wait(victim) != 0) << "it went on";
}

constexpr milliseconds kLong{60000}, kShort{3000};

TEST(LowLatencyFaults, ARankDiesBeforeItSends) {
  fault({When::before_it_sends, SIGKILL, kLong}, 2);
}
TEST(LowLatencyFaults, ARankDiesAfterItHasSent) {
  fault({When::after_a_dispatch, SIGKILL, kLong}, 0);
}
/// Its first rows and sums have left; the others never will.
TEST(LowLatencyFaults, ARankDiesInTheMiddleOfItsSends) {
  for (const uint32_t victim : {0, 2}) fault({When::in_a_dispatch, SIGSEGV, kLong}, victim);
  for (const uint32_t victim : {2, 3}) fault({When::in_a_combine, SIGSEGV, kLong}, victim);
}
TEST(LowLatencyFaults, ARankDiesAtAnyTime) {
  for (const uint32_t victim : {0, 1, 2, 3}) fault({When::any_time, SIGKILL, kLong}, victim);
}
TEST(LowLatencyFaults, ARankStopsAndOnlyTheDeadlineTells) {
  fault({When::before_it_sends, SIGSTOP, kShort}, 3);
  fault({When::after_a_dispatch, SIGSTOP, kShort}, 1);
}
TEST(LowLatencyFaults, ARankStopsAtAnyTime) {
  for (const uint32_t victim : {0, 2}) fault({When::any_time, SIGSTOP, kShort}, victim);
}

/// The survivor continues alone.
TEST(LowLatencyFaults, AllButOneDie) {
  const uint16_t port = free_port();
  constexpr uint32_t kLast = 1;
  RankProcesses ranks(kCase.shape.ranks, [&](uint32_t rank) {
    WorldOptions options;
    options.timeout = std::chrono::seconds(60);
    options.arena_bytes = 8 << 20;
    const auto world =
        connect_world({.port = port, .rank = rank, .size = kCase.shape.ranks}, "host", options);
    LowLatency exchange(*world, kCase.options());
    if (difference_after_batch(exchange, kCase, kCase.draw()) != "")
      throw WrongBatch("before anybody died");
    if (rank != kLast) raise(SIGKILL);
    std::set<uint32_t> others;
    for (uint32_t other = 0; other < kCase.shape.ranks; ++other)
      if (other != kLast) others.insert(other);
    for (uint32_t seed = 2; seed < 6; ++seed) {
      LowLatencyCase of = kCase;
      of.seed = seed;
      const std::string difference = difference_after_batch(exchange, of, of.draw(), others);
      if (!difference.empty()) throw WrongBatch(difference);
    }
    for (const FailedRank& masked : exchange.failed_ranks()) others.erase(masked.rank);
    if (!others.empty()) throw WrongBatch("somebody dead is not masked");
    exchange.close();
  });
  EXPECT_EQ(ranks.wait(kLast), 0);
}

}  // namespace
}  // namespace tokenyard::test
