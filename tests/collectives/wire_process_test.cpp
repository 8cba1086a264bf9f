// Ranks that are processes, and are killed, stopped and replaced.
#include <gtest/gtest.h>

#include "collectives/wire_processes.hpp"
#include "collectives/wire_ranks.hpp"

namespace tokenyard::collectives {
namespace {

class WireProcessTest : public testing::TestWithParam<bool> {
 protected:
  static WireOptions options() {
    return {.self = {}, .secret = {}, .host = {}, .address = {}, .force_tcp = GetParam()};
  }
};

struct Story {
  ContactBoard contacts;
  std::atomic<int> chapter = 0;
  std::atomic<int> sleeping = 0;

  void await_chapter(int number) {
    await("chapter " + std::to_string(number), [&] { return chapter.load() >= number; });
  }
};

/// Sends until nothing moves any more.
void send_until_stuck(Transport& transport, Channel& channel) {
  const auto bytes = bytes_of_seed(1 << 20, 1);
  size_t at = 0;  // offered bytes must be continued from the same address
  auto moved = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - moved < std::chrono::milliseconds(300)) {
    const size_t sent = channel.send_some(std::span(bytes).subspan(at));
    if (sent > 0) moved = std::chrono::steady_clock::now();
    at = (at + sent) % bytes.size();
    transport.poll();
  }
}

TEST_P(WireProcessTest, SurvivorsOfAKillGoOnInTheNextEpoch) {
  SharedBoard<Story> story;
  RankProcesses processes(3, [&](uint32_t rank) {
    const View first = view_of(3);
    const auto transport = join_wire(story->contacts, first, rank, options());
    const auto with = [&](Slot peer) { return transport->channel(0, Lane::collective, peer); };
    const Slot next = (rank + 1) % 3;
    const auto out = with(next);
    const auto in = with((rank + 2) % 3);
    const auto message = bytes_of_seed(100'000, rank);
    std::vector<std::byte> got(message.size());
    send_all(*transport, *out, message);
    receive_all(*transport, *in, got);
    ++story->chapter;
    // Rank 1 dies while rank 0 sends to it; nothing more moves, and no signal is raised.
    if (rank == 1) {
      for (;;) receive_all(*transport, *in, got);
    }
    if (rank == 0) send_until_stuck(*transport, *out);
    story->await_chapter(4);
    View second = first;
    second.epoch = 2;
    second.members.erase(second.members.begin() + 1);
    transport->begin_epoch(second, story->contacts.of(second));
    if (out->send_some(message) != 0) throw std::runtime_error("the old epoch still sends");
    const Slot other = 2 - rank;
    const auto channel = with(other);
    send_all(*transport, *channel, message);
    receive_all(*transport, *channel, got);
    if (got != bytes_of_seed(100'000, other)) throw std::runtime_error("wrong bytes");
  });
  story->await_chapter(3);
  processes.signal(1, SIGKILL);
  EXPECT_EQ(processes.wait(1), 128 + SIGKILL);
  ++story->chapter;
  EXPECT_EQ(processes.wait(0), 0);
  EXPECT_EQ(processes.wait(2), 0);
}

TEST_P(WireProcessTest, NothingOfARankThatSleptThroughItsReplacementIsTaken) {
  SharedBoard<Story> story;
  // 0 and 1 are the first members; 2 is a process that takes the slot of 1 while that is stopped.
  RankProcesses processes(3, [&](uint32_t process) {
    const Slot self = process == 0 ? 0 : 1;
    View first = view_of(2);
    View second = first;
    second.epoch = 2;
    second.members[1].incarnation = 7777;
    const auto old_bytes = bytes_of_seed(5000, 1);
    const auto new_bytes = bytes_of_seed(5000, 2);
    std::vector<std::byte> got(5000);
    if (process == 2) {
      story->await_chapter(2);
      story->contacts.places[1].bytes = 0;
      const auto transport = join_wire(story->contacts, second, self, options());
      story->chapter = 3;
      const auto channel = transport->channel(0, Lane::collective, 0);
      story->await_chapter(5);
      send_all(*transport, *channel, new_bytes);
      story->await_chapter(6);
      return;
    }
    const auto transport = join_wire(story->contacts, first, self, options());
    auto channel = transport->channel(0, Lane::collective, 1 - self);
    if (process == 1) {
      send_all(*transport, *channel, std::span(old_bytes).first(1000));
      story->chapter = 1;
      // Stopped here; then it goes on as if nothing had happened.
      while (story->chapter.load() < 4) std::this_thread::yield();
      for (int turn = 0; turn < 2000; ++turn) {
        (void)channel->send_some(std::span(old_bytes).subspan(1000));
        transport->poll();
      }
      story->chapter = 5;
      story->await_chapter(6);
      return;
    }
    receive_all(*transport, *channel, std::span(got).first(1000));
    story->await_chapter(3);
    transport->begin_epoch(second, story->contacts.of(second));
    channel = transport->channel(0, Lane::collective, 1);
    receive_all(*transport, *channel, got);
    if (got != new_bytes) throw std::runtime_error("bytes of the rank that was replaced");
    story->chapter = 6;
  });
  story->await_chapter(1);
  processes.signal(1, SIGSTOP);
  story->chapter = 2;
  story->await_chapter(3);
  story->chapter = 4;
  processes.signal(1, SIGCONT);
  for (const uint32_t process : {0u, 1u, 2u}) EXPECT_EQ(processes.wait(process), 0) << process;
}

TEST_P(WireProcessTest, SleepersSleepAndWakeForAByte) {
  SharedBoard<Story> story;
  RankProcesses processes(2, [&](uint32_t rank) {
    const auto transport = join_wire(story->contacts, view_of(2), rank, options());
    const auto channel = transport->channel(0, Lane::collective, 1 - rank);
    std::vector<std::byte> byte(1);
    if (rank == 0) {
      send_all(*transport, *channel, byte);
      await("rank 1 to sleep", [&] { return story->sleeping.load() != 0; });
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      send_all(*transport, *channel, byte);
      story->await_chapter(1);
      return;
    }
    receive_all(*transport, *channel, byte);
    int sleeps = 0;
    for (size_t got = 0; got == 0; ++sleeps) {
      transport->prepare_to_sleep();
      got = channel->receive_some(byte);
      if (got == 0) {
        story->sleeping = 1;
        transport->sleep(std::chrono::seconds(20));
      }
      transport->poll();
    }
    // The edges of its own set-up may end a sleep or two; a spinning one would make thousands.
    if (sleeps > 20) throw std::runtime_error("it did not sleep");
    story->chapter = 1;
  });
  EXPECT_EQ(processes.wait(0), 0);
  EXPECT_EQ(processes.wait(1), 0);
}

TEST_P(WireProcessTest, NobodySleepsThroughAByteOrThroughRoom) {
  SharedBoard<Story> story;
  RankProcesses processes(2, [&](uint32_t rank) {
    WireOptions tight = options();
    tight.ring_bytes = 4096;
    const auto transport = join_wire(story->contacts, view_of(2), rank, tight);
    const auto channel = transport->channel(0, Lane::collective, 1 - rank);
    // Sleeps whenever nothing moves at once. A missed doorbell costs a minute, and the test.
    const auto move = [&](size_t bytes, const std::function<size_t(size_t)>& some) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(50);
      for (size_t done = 0; done < bytes;) {
        size_t now = some(done);
        if (now == 0) {
          transport->prepare_to_sleep();
          now = some(done);
          if (now == 0) transport->sleep(std::chrono::seconds(60));
          transport->poll();
        }
        done += now;
        if (std::chrono::steady_clock::now() > until) throw std::runtime_error("overslept");
      }
    };
    std::vector<std::byte> bytes(50'000);
    for (uint32_t round = 0; round < 600; ++round) {
      const size_t part = round % 20 == 0 ? bytes.size() : 1 + round % 7;
      const auto message = std::span(bytes).first(part);
      if ((round + rank) % 2 == 0) {
        move(part, [&](size_t done) { return channel->send_some(message.subspan(done)); });
      } else {
        move(part, [&](size_t done) { return channel->receive_some(message.subspan(done)); });
      }
    }
  });
  EXPECT_EQ(processes.wait(0), 0);
  EXPECT_EQ(processes.wait(1), 0);
}

INSTANTIATE_TEST_SUITE_P(Over, WireProcessTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Tcp" : "SharedMemory"; });

}  // namespace
}  // namespace tokenyard::collectives
