/// A proxy over a transport that does what the test says.
#include "fabric/proxy/proxy.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>

namespace tokenyard {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kRanks = 3, kQueues = 2;
constexpr MemoryKey kKey = 0x901;

bool eventually(const std::function<bool()>& condition) {
  const auto until = Clock::now() + 60s;
  while (!condition()) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(100us);
  }
  return true;
}

/// Shared by the test and the thread of the proxy.
struct Script {
  std::mutex mutex;
  std::vector<PostedRequest> posted;     ///< in order
  std::vector<PostedRequest> completes;  ///< to be reported at the next poll
  std::array<bool, kRanks> full{};       ///< peers for which there is no room
  std::optional<std::string> broken;     ///< why rank 1 cannot be reached
  std::array<uint32_t, kRanks> dropped{};
  std::chrono::nanoseconds silent{};  ///< how long rank 1 has been silent
  std::string told;                   ///< to peers
  std::optional<uint32_t> holder;     ///< of memory that was deregistered
  bool throws = false, closed = false;
};

class ScriptedTransport final : public Transport {
 public:
  explicit ScriptedTransport(Script& script) : script_(script) {}
  std::string name() const override { return "a script"; }
  void set_listener(TransportListener& listener) override { listener_ = &listener; }
  bool post(const PostedRequest& request) override {
    const std::lock_guard lock(script_.mutex);
    if (script_.full[request.peer] || (request.peer == 1 && script_.broken)) return false;
    script_.posted.push_back(request);
    return true;
  }
  bool settle(uint32_t peer, uint32_t queue, uint32_t turn) override {
    if (broken(peer)) return false;
    listener_->settled(peer, queue, turn);
    return true;
  }
  bool poll() override {
    const std::lock_guard lock(script_.mutex);
    if (script_.throws) throw std::runtime_error("the card is on fire");
    for (const PostedRequest& done : script_.completes)
      listener_->completed(done.peer, done.queue, done.turn);
    return !std::exchange(script_.completes, {}).empty();
  }
  void sleep(std::chrono::nanoseconds, int waker) override {
    pollfd descriptor{waker, POLLIN, 0};
    (void)::poll(&descriptor, 1, 1);  // The script may have changed.
  }
  void register_memory(MemoryKey, std::span<std::byte>) override {}
  void withdraw(uint32_t) override {}
  std::optional<uint32_t> holder_of(uint32_t) const override {
    const std::lock_guard lock(script_.mutex);
    return script_.holder;
  }
  void drop(uint32_t peer, bool) override {
    const std::lock_guard lock(script_.mutex);
    ++script_.dropped[peer];
  }
  std::optional<std::string> broken(uint32_t peer) const override {
    const std::lock_guard lock(script_.mutex);
    return peer == 1 ? script_.broken : std::nullopt;
  }
  std::chrono::nanoseconds silent_for(uint32_t peer) const override {
    const std::lock_guard lock(script_.mutex);
    return peer == 1 && script_.dropped[1] == 0 ? script_.silent : 0ns;
  }
  void close() override {
    const std::lock_guard lock(script_.mutex);
    script_.closed = true;
  }

 private:
  Script& script_;
  TransportListener* listener_ = nullptr;
};

class ProxyThread : public ::testing::Test {
 protected:
  void start(std::chrono::nanoseconds grace = 60s) {
    Proxy::Queues queues{
        .per_peer = kQueues, .pairs = {}, .gone = gone_.data(), .refused = &abort_};
    for (uint32_t index = 0; index < kRanks * kQueues; ++index) {
      const uint32_t peer = index / kQueues;
      pairs_[index].peer = peer;
      queues.pairs.push_back(peer == 0 ? nullptr : &pairs_[index]);
    }
    proxy_ = std::make_unique<Proxy>(std::make_unique<ScriptedTransport>(script_), queues,
                                     ProxyOptions{.spin = 0ns, .grace = grace},
                                     [this](const std::string& why) {
                                       const std::lock_guard lock(script_.mutex);
                                       script_.told = why;
                                     });
    proxy_->register_memory(kKey, std::as_writable_bytes(std::span(memory_)), eventually);
  }
  QueuePair& pair(uint32_t peer, uint32_t queue = 0) { return pairs_[peer * kQueues + queue]; }
  /// Posts as a kernel does.
  void post(uint32_t peer, uint32_t queue = 0, uint32_t bytes = 8) {
    QueuePair& to = pair(peer, queue);
    NetworkRequest& request = to.ring[to.posted % QueuePair::kSlots];
    request = {};
    request.kind = NetworkRequest::Kind::put;
    request.pieces = 1;
    request.sources[0] = {.key = kKey, .bytes = bytes, .from = memory_.data()};
    __atomic_store_n(&to.posted, to.posted + 1, __ATOMIC_RELEASE);
    const uint64_t one = 1;
    (void)!write(proxy_->doorbell()->event, &one, sizeof one);
  }
  uint32_t completed(uint32_t peer) {
    return __atomic_load_n(&pair(peer).completed, __ATOMIC_ACQUIRE);
  }
  uint32_t refused(uint32_t peer) { return __atomic_load_n(&pair(peer).refused, __ATOMIC_ACQUIRE); }
  bool posts_reach(size_t count) {
    return eventually([&] {
      const std::lock_guard lock(script_.mutex);
      return script_.posted.size() == count;
    });
  }
  void complete(size_t index) {
    const std::lock_guard lock(script_.mutex);
    script_.completes.push_back(script_.posted.at(index));
  }

  Script script_;
  std::array<uint64_t, 64> memory_{};
  std::array<AbortWord, kRanks> gone_{};
  AbortWord abort_ = kNoAbort;
  std::array<QueuePair, kRanks * kQueues> pairs_{};
  std::unique_ptr<Proxy> proxy_;
};

TEST_F(ProxyThread, AQueueWithoutRoomHoldsUpNoOther) {
  script_.full[1] = true;
  start();
  for (int request = 0; request < 3; ++request) post(1);
  post(2);
  ASSERT_TRUE(posts_reach(1));
  EXPECT_EQ(script_.posted[0].peer, 2u);
  {
    const std::lock_guard lock(script_.mutex);
    script_.full[1] = false;
  }
  EXPECT_TRUE(posts_reach(4));
}

TEST_F(ProxyThread, CompletionsAreToldInTheOrderOfPosts) {
  start();
  for (int request = 0; request < 3; ++request) post(2);
  ASSERT_TRUE(posts_reach(3));
  complete(2);
  complete(1);
  // Both have been reported once a request of another queue has completed.
  post(1);
  ASSERT_TRUE(posts_reach(4));
  complete(3);
  ASSERT_TRUE(eventually([&] { return completed(1) == 1; }));
  EXPECT_EQ(completed(2), 0u) << "the first is not done";
  complete(0);
  EXPECT_TRUE(eventually([&] { return completed(2) == 3; }));
}

TEST_F(ProxyThread, DeregisteringWaitsForSourcesAndNamesTheirRank) {
  start();
  post(2);
  ASSERT_TRUE(posts_reach(1));
  const auto at_once = [](const std::function<bool()>& condition) {
    const auto until = Clock::now() + 50ms;
    while (!condition() && Clock::now() < until) std::this_thread::sleep_for(1ms);
    return condition();
  };
  std::optional<uint32_t> user;
  // It names the rank once the thread has looked.
  ASSERT_TRUE(eventually([&] {
    try {
      user = proxy_->deregister(kKey, at_once);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }));
  EXPECT_EQ(user, 2u);
  // Memory that a peer may still write to is not its owner's.
  {
    const std::lock_guard lock(script_.mutex);
    script_.holder = 1;
  }
  complete(0);
  EXPECT_TRUE(eventually([&] { return proxy_->deregister(kKey, at_once) == 1u; }));
  {
    const std::lock_guard lock(script_.mutex);
    script_.holder.reset();
  }
  EXPECT_EQ(proxy_->deregister(kKey, eventually), std::nullopt);
  post(2);
  EXPECT_TRUE(
      eventually([&] { return refused(2) == static_cast<uint32_t>(NetworkCheck::source_key); }));
}

/// A connection may break before the news arrives that its peer has died.
TEST_F(ProxyThread, RequestsOverABrokenConnectionWaitForTheNewsOfADeath) {
  script_.broken = "a cable was cut";
  start();
  post(1);
  post(2);
  ASSERT_TRUE(posts_reach(1));
  // After each sleep the thread looks at its peers.
  const uint64_t before = proxy_->sleeps();
  ASSERT_TRUE(eventually([&] { return proxy_->sleeps() >= before + 5; }));
  EXPECT_EQ(refused(1), 0u);
  EXPECT_EQ(completed(1), 0u);
  __atomic_store_n(&gone_[1], abort_for_lost(1), __ATOMIC_RELEASE);
  EXPECT_TRUE(eventually([&] { return completed(1) == 1; }));
  EXPECT_EQ(refused(1), 0u);
  const std::lock_guard lock(script_.mutex);
  EXPECT_NE(script_.dropped[1], 0u);
}

TEST_F(ProxyThread, ABrokenConnectionToALivingRankIsRefusedByName) {
  script_.broken = "a cable was cut";
  start(1ms);
  post(1);
  post(1);
  ASSERT_TRUE(eventually([&] { return refused(1) != 0; }));
  EXPECT_EQ(refused(1), static_cast<uint32_t>(NetworkCheck::connection));
  EXPECT_EQ(pair(1).refusal.expected, 2u) << "requests posted";
  EXPECT_EQ(pair(1).refusal.seen, 0u) << "requests completed";
  EXPECT_EQ(__atomic_load_n(&abort_, __ATOMIC_ACQUIRE), kRefused);
}

TEST_F(ProxyThread, ARetiredQueueEndsNoWait) {
  start();
  post(1, 0, 1 << 20);  // Longer than its source.
  ASSERT_TRUE(eventually([&] { return refused(1) != 0; }));
  EXPECT_EQ(__atomic_load_n(&abort_, __ATOMIC_ACQUIRE), kRefused);
  const auto others_after = [&](const std::vector<bool>& retired) {
    bool refused_others = false;
    proxy_->retire(
        retired, [&](bool others) { refused_others = others; }, eventually);
    return refused_others;
  };
  EXPECT_TRUE(others_after({false, true}));
  EXPECT_FALSE(others_after({true, true}));
  __atomic_store_n(&abort_, kNoAbort, __ATOMIC_RELEASE);
  // A late refusal of a queue of the same number.
  post(2, 0, 1 << 20);
  EXPECT_TRUE(eventually([&] { return proxy_->is_settled(); }));
  EXPECT_EQ(__atomic_load_n(&abort_, __ATOMIC_ACQUIRE), kNoAbort);
}

TEST_F(ProxyThread, AFailedThreadEndsTheWaitsOfItsRank) {
  start();
  post(2);
  ASSERT_TRUE(posts_reach(1));
  {
    const std::lock_guard lock(script_.mutex);
    script_.throws = true;
  }
  ASSERT_TRUE(eventually([&] { return refused(2) != 0; }));
  EXPECT_TRUE(eventually([&] { return proxy_->failure().has_value(); }));
  EXPECT_EQ(*proxy_->failure(), "the card is on fire");
  EXPECT_EQ(proxy_->cause(2), "the thread of the network has failed: the card is on fire");
  EXPECT_TRUE(eventually([&] {
    const std::lock_guard lock(script_.mutex);
    return script_.told == "the card is on fire";
  }));
  EXPECT_TRUE(eventually([&] {
    const std::lock_guard lock(script_.mutex);
    return script_.closed;
  })) << "peers would wait for it";
}

/// Its requests may have completed: then they have gone no further than this system.
TEST_F(ProxyThread, ASilentPeerIsGivenUpByName) {
  start(100ms);
  post(1);
  post(2);
  ASSERT_TRUE(posts_reach(2));
  complete(0);
  ASSERT_TRUE(eventually([&] { return completed(1) == 1; }));
  const auto is_silent = [&](std::chrono::nanoseconds time) {
    const std::lock_guard lock(script_.mutex);
    script_.silent = time;
  };
  is_silent(99ms);
  const uint64_t before = proxy_->sleeps();
  ASSERT_TRUE(eventually([&] { return proxy_->sleeps() >= before + 5; }));
  EXPECT_EQ(refused(1), 0u);
  is_silent(100ms);
  ASSERT_TRUE(eventually([&] { return refused(1) != 0; }));
  EXPECT_EQ(refused(1), static_cast<uint32_t>(NetworkCheck::connection));
  EXPECT_EQ(proxy_->cause(1), "it has taken nothing for 0.1 s");
  EXPECT_EQ(refused(2), 0u) << "of another peer";
  EXPECT_TRUE(eventually([&] {
    const std::lock_guard lock(script_.mutex);
    return script_.dropped[1] == 1 && script_.dropped[2] == 0;
  }));
}

TEST_F(ProxyThread, SettlesOnlyWhenAsked) {
  start();
  post(2);
  ASSERT_TRUE(posts_reach(1));
  EXPECT_FALSE(proxy_->is_settled());
  complete(0);
  const auto settling = proxy_->settle();
  EXPECT_TRUE(eventually([&] { return proxy_->is_settled(); }));
}

/// A signal may be under way over another path than the question.
TEST_F(ProxyThread, SettlesNothingBeforeAllRequestsHaveCompleted) {
  start();
  post(2);
  ASSERT_TRUE(posts_reach(1));
  const auto settling = proxy_->settle();
  const uint64_t before = proxy_->sleeps();
  ASSERT_TRUE(eventually([&] { return proxy_->sleeps() >= before + 5; }));
  EXPECT_FALSE(proxy_->is_settled());
  complete(0);
  EXPECT_TRUE(eventually([&] { return proxy_->is_settled(); }));
}

/// Once requests are refused, their sources are the caller's again.
TEST_F(ProxyThread, WhatIsRefusedForABrokenConnectionIsDropped) {
  start(10ms);
  post(1);
  ASSERT_TRUE(posts_reach(1));
  {
    const std::lock_guard lock(script_.mutex);
    script_.broken = "a cable was cut";
  }
  ASSERT_TRUE(eventually([&] { return refused(1) != 0; }));
  EXPECT_TRUE(eventually([&] {
    const std::lock_guard lock(script_.mutex);
    return script_.dropped[1] > 0;
  }));
}

}  // namespace
}  // namespace tokenyard
