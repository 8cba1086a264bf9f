// The public classes, over the real control plane and shared memory: ranks are threads of this
// process, each with everything that a process has.

#include "tokenyard/collectives.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <latch>
#include <thread>

namespace tokenyard {
namespace {

using namespace std::chrono_literals;

/// A temporary directory.
class Directory {
 public:
  Directory() {
    std::string name = (std::filesystem::temp_directory_path() / "tokenyard-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no directory");
    path_ = name;
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  std::string store() const { return "file:" + path_.string(); }

 private:
  std::filesystem::path path_;
};

CollectivesOptions options_of(const Directory& directory, uint32_t rank, uint32_t size) {
  CollectivesOptions options;
  options.store = directory.store();
  options.secret = "only we know";
  options.address = "127.0.0.1";
  options.rank = rank;
  options.size = size;
  return options;
}

/// Runs `body` as every rank; an exception on any rank fails the test.
void as_ranks(
    uint32_t size, const std::function<void(Collectives&)>& body,
    const std::function<void(CollectivesOptions&)>& change = [](CollectivesOptions&) {}) {
  const Directory directory;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        CollectivesOptions options = options_of(directory, rank, size);
        change(options);
        const auto collectives = Collectives::connect(options);
        body(*collectives);
        collectives->world().barrier().wait();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TensorView array_of(std::vector<float>& values) {
  return {values.data(), {values.size()}};
}

TEST(Collectives, RanksReduceAndTalk) {
  as_ranks(3, [](Collectives& collectives) {
    Group world = collectives.world();
    EXPECT_EQ(world.size(), 3u);
    EXPECT_EQ(world.active_ranks(), (std::vector<uint32_t>{0, 1, 2}));
    for (const size_t elements : {size_t{1}, size_t{100}, size_t{300000}}) {
      std::vector<float> values(elements, static_cast<float>(world.rank() + 1));
      Work work = world.all_reduce(array_of(values), ReduceOp::sum);
      work.wait();
      EXPECT_EQ(values, std::vector<float>(elements, 6));
      EXPECT_THAT(work.choice(), ::testing::HasSubstr("3 ranks on 1 host"));
    }
    float got = 0;
    const float mine = static_cast<float>(world.rank());
    Work receive = world.receive({&got, {1}}, (world.rank() + 1) % 3, 4);
    world.send({&mine, {1}}, (world.rank() + 2) % 3, 4).wait();
    receive.wait();
    EXPECT_EQ(got, static_cast<float>((world.rank() + 1) % 3));
    EXPECT_EQ(receive.source(), (world.rank() + 1) % 3);
  });
}

TEST(Collectives, GroupsDoNotWaitForOneAnother) {
  as_ranks(4, [](Collectives& collectives) {
    const std::vector<uint32_t> even = {0, 2}, odd = {3, 1};
    const bool is_even = collectives.rank() % 2 == 0;
    Group group = collectives.group(is_even ? even : odd, is_even ? "even" : "odd");
    EXPECT_EQ(group.rank(), collectives.rank() == 0 || collectives.rank() == 3 ? 0u : 1u);
    // Rank 0 calls the world's operation last; groups go on meanwhile.
    Work late(nullptr);
    std::vector<float> values(1000, 1), shared(1000, 1);
    if (collectives.rank() != 0)
      late = collectives.world().all_reduce(array_of(shared), ReduceOp::sum);
    for (int round = 0; round < 20; ++round)
      group.all_reduce(array_of(values), ReduceOp::max).wait();
    if (collectives.rank() == 0)
      late = collectives.world().all_reduce(array_of(shared), ReduceOp::sum);
    late.wait();
    EXPECT_EQ(shared, std::vector<float>(1000, 4));
  });
}

TEST(Collectives, ManyThreadsCall) {
  constexpr int groups = 4, rounds = 50;
  as_ranks(2, [](Collectives& collectives) {
    std::vector<Group> mine;
    for (int index = 0; index < groups; ++index) {
      mine.push_back(collectives.group(std::vector<uint32_t>{0, 1}, fmt::format("g{}", index)));
    }
    std::vector<std::thread> threads;
    std::atomic<int> called = 0;
    for (int index = 0; index < groups; ++index) {
      threads.emplace_back([&, index] {
        for (int round = 0; round < rounds; ++round) {
          std::vector<float> values(1 + 997 * static_cast<size_t>(round), 1);
          Work work = mine[index].all_reduce(array_of(values), ReduceOp::sum);
          if (round % 3 == 0) work.when_done([&] { ++called; });
          work.wait();
          EXPECT_EQ(values, std::vector<float>(values.size(), 2));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    collectives.world().barrier().wait();
    EXPECT_EQ(collectives.counters().aborted, 0u);
    EXPECT_GE(collectives.counters().committed, uint64_t{groups * rounds});
  });
}

TEST(Collectives, NobodyNeedsToWaitForAnOperationToEnd) {
  as_ranks(2, [](Collectives& collectives) {
    std::vector<std::vector<float>> values(20, std::vector<float>(5000, 1));
    std::latch ended(20);
    std::vector<Work> works;
    for (std::vector<float>& one : values) {
      works.push_back(collectives.world().all_reduce(array_of(one), ReduceOp::sum));
      works.back().when_done([&] { ended.count_down(); });
    }
    ended.wait();
    for (const std::vector<float>& one : values) EXPECT_EQ(one, std::vector<float>(5000, 2));
  });
}

TEST(Collectives, DifferentCallsAreNamedAndTheGroupGoesOn) {
  as_ranks(3, [](Collectives& collectives) {
    Group world = collectives.world();
    std::vector<float> values(7, 1);
    try {
      (collectives.rank() == 1 ? world.broadcast(array_of(values), 0)
                               : world.all_reduce(array_of(values), ReduceOp::sum))
          .wait();
      ADD_FAILURE() << "no error";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("broadcast(float32[7], root 0) on rank 1"));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("all_reduce(sum, float32[7]) on rank"));
    }
    world.all_reduce(array_of(values), ReduceOp::sum).wait();
    EXPECT_EQ(values, std::vector<float>(7, 3));
  });
}

TEST(Collectives, ATensorThatIsNoneIsRefused) {
  as_ranks(1, [](Collectives& collectives) {
    Group world = collectives.world();
    EXPECT_THROW(world.all_reduce(TensorView{}, ReduceOp::sum), InvalidArgument);
    EXPECT_THROW(world.broadcast(TensorView{}, 0), InvalidArgument);
    world.all_reduce(TensorView(static_cast<float*>(nullptr), {0}), ReduceOp::sum).wait();
  });
}

// The late rank may call `shrink` before it hears of the failure that it caused.
TEST(Collectives, WhoDoesNotComeIsNamedAndShrinkMendsIt) {
  std::atomic<int> failed = 0;
  as_ranks(3, [&](Collectives& collectives) {
    Group world = collectives.world();
    std::vector<float> values(7, 1);
    if (collectives.rank() != 2) {
      try {
        world.all_reduce(array_of(values), ReduceOp::sum, {.timeout = 300ms}).wait();
        ADD_FAILURE() << "no error";
      } catch (const PeerTimeout& error) {
        EXPECT_EQ(error.facts.rank, 2u);
        EXPECT_THAT(error.facts.phase, ::testing::HasSubstr("rank 2 has not begun it"));
      }
      EXPECT_EQ(values, std::vector<float>(7, 1));
      ++failed;
    }
    while (failed < 2) std::this_thread::yield();
    EXPECT_EQ(collectives.shrink(), (std::vector<uint32_t>{0, 1, 2}));
    world.all_reduce(array_of(values), ReduceOp::sum).wait();
    EXPECT_EQ(values, std::vector<float>(7, 3));
  });
}

TEST(Collectives, CancelEndsWhatWaits) {
  const Directory directory;
  std::latch both(2), over(2);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto collectives = Collectives::connect(options_of(directory, rank, 2));
      both.arrive_and_wait();
      if (rank == 1) return over.arrive_and_wait();
      std::thread canceller([&] { collectives->cancel(); });
      EXPECT_THROW(collectives->world().barrier().wait(), Cancelled);
      EXPECT_THROW(collectives->world().barrier().wait(), Cancelled);
      canceller.join();
      over.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Collectives, AnInterruptEndsAWaitAndNotTheOperation) {
  std::atomic<bool> armed = false;
  const auto body = [&](Collectives& collectives) {
    Group world = collectives.world();
    char token = 0;
    if (collectives.rank() == 1) {
      world.receive({&token, {1}}, 0).wait();
      world.barrier().wait();
      return;
    }
    Work barrier = world.barrier();
    armed = true;
    EXPECT_THROW(barrier.wait(), std::runtime_error);
    world.send({&token, {1}}, 1).wait();
    barrier.wait();
  };
  as_ranks(2, body, [&](CollectivesOptions& options) {
    if (options.rank == 1) return;
    options.interrupt = [&] {
      if (armed.exchange(false)) throw std::runtime_error("interrupted");
    };
  });
}

TEST(Collectives, AGroupHasItsEagerLimit) {
  const auto body = [](Collectives& collectives) {
    Group world = collectives.world();
    const std::vector<uint32_t> both = {0, 1};
    EXPECT_THROW(collectives.group(both, "too large", std::nullopt, eager_limit_max + 1),
                 InvalidArgument);
    Group eager = collectives.group(both, "eager", std::nullopt, 1);
    Group as_the_job = collectives.group(both, "as the job");
    char token = 7, got = 0;
    std::vector<Work> sends;
    if (collectives.rank() == 0) {
      for (Group* group : {&world, &eager, &as_the_job}) {
        sends.push_back(group->send({&token, {1}}, 1));
        EXPECT_EQ(sends.back().done(), group == &eager);
      }
    }
    world.barrier().wait();
    if (collectives.rank() == 0) {
      EXPECT_FALSE(sends[0].done());
      EXPECT_FALSE(sends[2].done());
    }
    world.barrier().wait();
    for (Group* group : {&world, &eager, &as_the_job}) {
      if (collectives.rank() == 1) group->receive({&got, {1}}, 0).wait();
    }
    for (Work& send : sends) send.wait();
  };
  as_ranks(2, body, [](CollectivesOptions& options) { options.eager_limit = 0; });
  const Directory directory;
  CollectivesOptions wrong = options_of(directory, 0, 1);
  wrong.eager_limit = eager_limit_max + 1;
  EXPECT_THROW(Collectives::connect(wrong), InvalidArgument);
}

TEST(Collectives, AViewThatCannotBeIsNamedAndNothingMoves) {
  as_ranks(2, [](Collectives& collectives) {
    Group world = collectives.world();
    std::vector<float> values(6, 1);
    const auto refusal_of = [&](TensorView view) -> std::string {
      try {
        world.all_reduce(view, ReduceOp::sum).wait();
      } catch (const InvalidArgument& error) {
        return error.argument + ": " + error.expected + ", not " + error.seen;
      }
      return "";
    };
    const TensorView matrix(values.data(), {2, 3});
    EXPECT_EQ(refusal_of({static_cast<float*>(nullptr), {2, 3}}),
              "in_out: 6 elements, not a null pointer");
    EXPECT_EQ(refusal_of(matrix.with_strides({1, 2})),
              "in_out: contiguous elements, not strides [1, 2]");
    EXPECT_EQ(refusal_of({values.data(), DataType::float8_e4m3fn, {24}}),
              "array: elements of a type that can be reduced, not float8_e4m3fn");
    EXPECT_EQ(refusal_of({values.data(), {UINT64_MAX, 2}}),
              "in_out: bytes that 64 bits can count, not [18446744073709551615, 2] of float32");
    EXPECT_EQ(values, std::vector<float>(6, 1));
    EXPECT_EQ(refusal_of(matrix), "");
    EXPECT_EQ(values, std::vector<float>(6, 2));
  });
}

TEST(Collectives, AnIdleProcessUsesNoProcessorTime) {
  as_ranks(2, [](Collectives& collectives) {
    collectives.world().barrier().wait();
    if (collectives.rank() != 0) return;
    const auto used = [] {
      rusage usage;
      getrusage(RUSAGE_SELF, &usage);
      return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
             std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    };
    std::this_thread::sleep_for(100ms);
    const auto before = used();
    std::this_thread::sleep_for(1s);
    // Heartbeats of two ranks, and the other rank's waiting barrier. A spinning thread uses 1 s.
    EXPECT_LT(used() - before, 250ms);
  });
}

}  // namespace
}  // namespace tokenyard
