// Threads: callers at the wheel, passengers, the thread that drives unattended operations, and a
// control plane that ends epochs meanwhile.

#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <numeric>
#include <thread>

#include "collectives/engine/progress_thread.hpp"
#include "collectives/engine_calls.hpp"
#include "collectives/engine_world.hpp"

namespace tokenyard::collectives::testing {
namespace {

Instant real_time() {
  return std::chrono::duration_cast<Instant>(std::chrono::steady_clock::now().time_since_epoch());
}

/// Ranks with one progress thread each.
class DrivenRanks {
 public:
  explicit DrivenRanks(uint32_t ranks, OnFailure on_failure = OnFailure::raise)
      : network_(16 << 10), controls_(ranks) {
    Verdict first = {.next = {.epoch = 1, .slots = ranks}};
    for (Slot slot = 0; slot < ranks; ++slot) {
      first.next.members.push_back({slot, 1});
      transports_.push_back(std::make_shared<MemoryTransport>(network_, slot));
      engines_.push_back(std::make_unique<Engine>(
          transports_.back(),
          EngineOptions{.self = slot, .on_failure = on_failure, .chunk_bytes = 4096}, real_time));
      engines_.back()->use(controls_[slot]);
      GroupIdentity world = {.id = 0, .name = "world", .self = slot};
      for (Slot other = 0; other < ranks; ++other) world.slots.push_back(other);
      engines_.back()->add_group(world);
      progress_threads_.push_back(std::make_unique<ProgressThread>(
          *engines_.back(), *transports_.back(), ProgressThreadOptions{}));
    }
    verdict_ = first;
    for (auto& engine : engines_) engine->install(first, {});
  }
  ~DrivenRanks() {
    for (auto& engine : engines_) engine->cancel(std::make_exception_ptr(Cancelled("the end")));
  }

  Engine& engine(Slot slot) { return *engines_[slot]; }
  ProgressThread& progress_thread(Slot slot) { return *progress_threads_[slot]; }
  std::shared_ptr<Operation> start(Slot slot, Call call) {
    auto operation = engine(slot).start(0, std::move(call), 20s);
    progress_thread(slot).launched();
    return operation;
  }
  void wait(Slot slot, const Outcome& outcome) {
    progress_thread(slot).wait(outcome, std::nullopt);
  }

  /// Ends the epoch without losing anybody.
  void renew() {
    ++verdict_.next.epoch;
    std::map<GroupId, GroupProgress> groups;
    for (auto& engine : engines_) {
      for (const GroupProgress& progress : engine->freeze(verdict_.next.epoch - 1)) {
        GroupProgress& known = groups.try_emplace(progress.group, progress).first->second;
        known.committed = std::max(known.committed, progress.committed);
      }
    }
    verdict_.groups.clear();
    for (const auto& [id, progress] : groups) verdict_.groups.push_back(progress);
    for (auto& engine : engines_) engine->install(verdict_, {});
  }

 private:
  MemoryNetwork network_;
  std::vector<RecordingControl> controls_;
  std::vector<std::shared_ptr<MemoryTransport>> transports_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::unique_ptr<ProgressThread>> progress_threads_;
  Verdict verdict_;
};

void as_threads(uint32_t ranks, const std::function<void(Slot)>& body) {
  std::vector<std::thread> threads;
  for (Slot slot = 0; slot < ranks; ++slot) threads.emplace_back([&, slot] { body(slot); });
  for (std::thread& thread : threads) thread.join();
}

TEST(ProgressThread, CallersDriveTheirOwnOperations) {
  DrivenRanks ranks(3);
  as_threads(3, [&](Slot slot) {
    for (size_t round = 1; round <= 100; ++round) {
      std::vector<float> values(round * 40, 1);
      const auto operation = ranks.start(slot, all_reduce_call(array_of(values)));
      ranks.wait(slot, *operation);
      ASSERT_EQ(error_text(*operation), "");
      ASSERT_EQ(values, std::vector<float>(round * 40, 3));
    }
  });
}

TEST(ProgressThread, OperationsThatNobodyWaitsForEnd) {
  DrivenRanks ranks(2);
  std::latch ended(2 * 10);
  std::vector<std::vector<float>> values(20, std::vector<float>(3000, 1));
  as_threads(2, [&](Slot slot) {
    for (int index = 0; index < 10; ++index) {
      const auto operation =
          ranks.start(slot, all_reduce_call(array_of(values[slot * 10 + index])));
      operation->when_done([&] { ended.count_down(); });
    }
  });
  ended.wait();
  for (const auto& one : values) EXPECT_EQ(one, std::vector<float>(3000, 2));
}

TEST(ProgressThread, SeveralThreadsOfARankWait) {
  DrivenRanks ranks(2);
  as_threads(2, [&](Slot slot) {
    std::vector<std::vector<float>> values(8, std::vector<float>(2000, 1));
    std::vector<std::shared_ptr<Operation>> operations;
    for (auto& one : values)
      operations.push_back(ranks.start(slot, all_reduce_call(array_of(one))));
    std::vector<std::thread> threads;
    for (const auto& operation : operations) {
      threads.emplace_back([&] { ranks.wait(slot, *operation); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& one : values) EXPECT_EQ(one, std::vector<float>(2000, 2));
  });
}

// Operations undone at the end of an epoch run again, however often.
TEST(ProgressThread, EpochsMayEndWhileThreadsWait) {
  DrivenRanks ranks(3);
  std::atomic<bool> over = false;
  std::thread control([&] {
    while (!over) {
      ranks.renew();
      std::this_thread::sleep_for(2ms);
    }
  });
  as_threads(3, [&](Slot slot) {
    for (size_t round = 1; round <= 60; ++round) {
      std::vector<float> values(round * 100, 1);
      const auto operation = ranks.start(slot, all_reduce_call(array_of(values)));
      ranks.wait(slot, *operation);
      ASSERT_EQ(error_text(*operation), "");
      ASSERT_EQ(values, std::vector<float>(round * 100, 3));
    }
  });
  over = true;
  control.join();
}

TEST(ProgressThread, AWaitMayEndBeforeTheOperation) {
  DrivenRanks ranks(2);
  const auto operation = ranks.start(0, barrier_call());
  EXPECT_FALSE(ranks.progress_thread(0).wait(*operation, real_time() + 20ms));
  const auto other = ranks.start(1, barrier_call());
  EXPECT_TRUE(ranks.progress_thread(0).wait(*operation, std::nullopt));
  ranks.wait(1, *other);
}

/// Returns late from its sleep, as if the system ran the thread late.
class LateTransport final : public Transport {
 public:
  LateTransport(MemoryNetwork& network, Slot self) : inner_(network, self) {}

  std::atomic<bool> asleep = false;

  Contact contact() const override { return inner_.contact(); }
  void begin_epoch(const View& view, const Contacts& contacts) override {
    inner_.begin_epoch(view, contacts);
  }
  std::shared_ptr<Channel> channel(GroupId group, Lane lane, Slot peer) override {
    return inner_.channel(group, lane, peer);
  }
  bool same_host(Slot peer) const override { return inner_.same_host(peer); }
  void poll() override { inner_.poll(); }
  void prepare_to_sleep() override { inner_.prepare_to_sleep(); }
  void sleep(std::chrono::nanoseconds at_most) override {
    asleep = true;
    inner_.sleep(at_most);
    std::this_thread::sleep_for(100ms);
    asleep = false;
  }
  void wake() override { inner_.wake(); }

 private:
  MemoryTransport inner_;
};

/// Rank 0 of two, and a barrier that the other rank does not reach.
struct LateRank {
  MemoryNetwork network{16 << 10};
  RecordingControl control;
  std::shared_ptr<LateTransport> transport = std::make_shared<LateTransport>(network, 0);
  Engine engine{transport, EngineOptions{.self = 0}, real_time};
  std::shared_ptr<Operation> barrier;

  LateRank() {
    engine.use(control);
    engine.add_group({.id = 0, .name = "world", .slots = {0, 1}, .self = 0});
    engine.install({.next = {.epoch = 1, .slots = 2, .members = {{0, 1}, {1, 1}}}}, {});
    barrier = engine.start(0, barrier_call(), 20s);
  }
  void end() { engine.cancel(std::make_exception_ptr(Cancelled("the end"))); }
};

// The caller of `stop` frees the transport next, so no waiting thread may still be in it.
TEST(ProgressThread, StopsOnceNobodyIsInTheTransport) {
  LateRank rank;
  ProgressThread progress_thread(rank.engine, *rank.transport, {});
  std::thread waiter([&] { EXPECT_TRUE(progress_thread.wait(*rank.barrier, std::nullopt)); });
  while (!rank.transport->asleep) std::this_thread::sleep_for(1ms);
  rank.end();
  progress_thread.stop();
  EXPECT_FALSE(rank.transport->asleep);
  waiter.join();
}

// As when a handler of Ctrl-C closes the transport in which its own thread waits.
TEST(ProgressThread, MayBeStoppedByWhoeverIsInterruptedAtTheWheel) {
  LateRank rank;
  std::function<void()> interrupt = [] {};
  ProgressThread progress_thread(rank.engine, *rank.transport, {.interrupt = [&] { interrupt(); }});
  interrupt = [&] {
    rank.end();
    progress_thread.stop();
    EXPECT_FALSE(rank.transport->asleep);
  };
  EXPECT_TRUE(progress_thread.wait(*rank.barrier, std::nullopt));
}

}  // namespace
}  // namespace tokenyard::collectives::testing
