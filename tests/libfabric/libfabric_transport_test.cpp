/// The transport over a network that does what the test says.
#ifdef TOKENYARD_LIBFABRIC
#include "libfabric/libfabric_transport.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>

namespace tokenyard::libfabric {
namespace {

constexpr MemoryKey kKey = 0x901;
constexpr uint32_t kCredits = 8;

class FakeProvider;

struct FakeNetwork {
  std::vector<FakeProvider*> nodes;
  bool full = false;
  std::optional<uint32_t> fails;  ///< writes to this node
};

/// Delivers at once what its receiver has room for.
class FakeProvider final : public Provider {
 public:
  explicit FakeProvider(FakeNetwork& network, uint32_t rank) : network_(network), rank_(rank) {
    network.nodes.push_back(this);
  }
  Facts facts_{.name = "fake",
               .interface = "none",
               .ordered = false,
               .tells_data = true,
               .message_max = 1 << 20,
               .pieces_max = 2,
               .receives_max = 64};

  const Facts& facts() const override { return facts_; }
  std::vector<std::byte> address() const override { return {std::byte(rank_)}; }
  uint64_t insert(std::span<const std::byte> address) override {
    return std::to_integer<uint64_t>(address[0]);
  }
  std::unique_ptr<Region> register_memory(std::span<std::byte> memory, bool) override {
    auto region = std::make_unique<Region>();
    region->base = reinterpret_cast<uintptr_t>(memory.data());
    return region;
  }
  std::unique_ptr<Region> register_gpu_memory(std::span<std::byte> memory) override {
    return register_memory(memory, true);
  }
  Posted send(uint64_t peer, std::span<const std::byte> message, const Region&,
              Operation& operation) override {
    FakeProvider& to = *network_.nodes[peer];
    if (network_.full) return Posted::full;
    EXPECT_FALSE(to.receives_.empty()) << "more messages than the receiver has granted";
    if (to.receives_.empty()) return Posted::full;
    const auto [into, receive] = to.receives_.front();
    to.receives_.pop_front();
    std::ranges::copy(message, into.begin());
    to.happened_.push_back({.operation = receive, .data = 0, .bytes = message.size(), .error = 0});
    happened_.push_back({.operation = &operation});
    return Posted::yes;
  }
  Posted receive(std::span<std::byte> into, const Region&, Operation& operation) override {
    receives_.emplace_back(into, &operation);
    return Posted::yes;
  }
  Posted write(uint64_t peer, const Write& write, Operation& operation) override {
    if (network_.full) return Posted::full;
    if (network_.fails == peer) {
      happened_.push_back({.operation = &operation, .data = 0, .bytes = 0, .error = 5});
      return Posted::yes;
    }
    auto* to = reinterpret_cast<std::byte*>(write.target);
    for (const auto& piece : write.pieces) to = std::ranges::copy(piece, to).out;
    if (write.data)
      network_.nodes[peer]->happened_.push_back({.operation = nullptr, .data = *write.data});
    happened_.push_back({.operation = &operation});
    return Posted::yes;
  }
  size_t poll(std::span<Completion> completions) override {
    if (happened_.empty()) return 0;
    completions[0] = happened_.front();
    happened_.pop_front();
    return 1;
  }
  std::string why() const override { return "the cable is cut"; }
  void sleep(std::chrono::nanoseconds, int) override {}
  void stop() override {}

 private:
  FakeNetwork& network_;
  const uint32_t rank_;
  std::deque<std::pair<std::span<std::byte>, Operation*>> receives_;
  std::deque<Completion> happened_;
};

struct Listener final : TransportListener {
  void completed(uint32_t peer, uint32_t, uint32_t) override { ++completions[peer]; }
  void settled(uint32_t, uint32_t, uint32_t turn) override { settled_turn = turn; }
  void refused(uint32_t, uint32_t, NetworkCheck check, const NetworkRefusal&) override {
    refusal = check;
  }
  std::map<uint32_t, uint32_t> completions;
  uint32_t settled_turn = 0;
  std::optional<NetworkCheck> refusal;
};

class Transports : public ::testing::Test {
 protected:
  static constexpr uint32_t kRanks = 3;

  void SetUp() override {
    std::vector<std::unique_ptr<FakeProvider>> providers;
    std::vector<PeerCard> cards;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      providers.push_back(std::make_unique<FakeProvider>(network_, rank));
      cards.push_back(
          {.address = providers[rank]->address(), .token = 100 + rank, .credits = kCredits});
    }
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      LibfabricTransport::Options options{.place = {.rank = rank,
                                                    .ranks = kRanks,
                                                    .epoch = 1,
                                                    .secret = "",
                                                    .address = "",
                                                    .queues = 2,
                                                    .stall = std::chrono::milliseconds(100)},
                                          .own = cards[rank],
                                          .peers = {}};
      for (uint32_t peer = 0; peer < kRanks; ++peer) {
        options.peers.emplace_back();
        if (peer != rank) options.peers.back() = cards[peer];
      }
      transports_.push_back(
          std::make_unique<LibfabricTransport>(std::move(providers[rank]), std::move(options)));
      transports_[rank]->set_listener(listeners_[rank]);
      transports_[rank]->register_memory(kKey, std::as_writable_bytes(std::span(memory_[rank])));
    }
    // Receives are posted before anything is sent.
    network_.full = true;
    for (auto& transport : transports_) transport->poll();
    network_.full = false;
    ASSERT_TRUE(run([&] {
      return std::ranges::none_of(transports_,
                                  [](auto& each) { return each->missing().has_value(); });
    }));
  }
  bool run(const std::function<bool()>& condition) {
    for (uint32_t round = 0; round < 100000; ++round) {
      if (condition()) return true;
      for (auto& transport : transports_) transport->poll();
    }
    return false;
  }
  bool post(uint32_t to, NetworkRequest::Kind kind, uint64_t offset) {
    PostedRequest request{.peer = to,
                          .queue = 0,
                          .turn = turns_[to],
                          .kind = kind,
                          .target = {.key = kKey, .offset = offset},
                          .addend = 1};
    if (kind == NetworkRequest::Kind::put)
      request.pieces[0] = std::as_bytes(std::span(memory_[0])).first(8);
    if (!transports_[0]->post(request)) return false;
    ++turns_[to];
    return true;
  }
  bool put(uint32_t to) {
    return run([&] { return post(to, NetworkRequest::Kind::put, 8); });
  }

  FakeNetwork network_;
  std::array<std::array<uint64_t, 8>, kRanks> memory_{};
  std::array<Listener, kRanks> listeners_;
  std::vector<std::unique_ptr<LibfabricTransport>> transports_;
  std::array<uint32_t, kRanks> turns_{};
};

TEST_F(Transports, AFailedPutLosesItsPeerByNameAndNoOther) {
  memory_[0][0] = 7;
  ASSERT_TRUE(put(1));
  ASSERT_TRUE(run([&] { return listeners_[0].completions[1] == 1; }));
  EXPECT_EQ(memory_[1][1], 7u);
  network_.fails = 1;
  ASSERT_TRUE(put(1));
  ASSERT_TRUE(run([&] { return transports_[0]->broken(1).has_value(); }));
  EXPECT_EQ(*transports_[0]->broken(1), "a put to it failed: the cable is cut");
  EXPECT_FALSE(post(1, NetworkRequest::Kind::put, 8));
  EXPECT_EQ(listeners_[0].completions[1], 1u);
  // The peer is told, and another one is still reached.
  EXPECT_TRUE(run([&] { return transports_[1]->broken(0).has_value(); }));
  ASSERT_TRUE(put(2));
  EXPECT_TRUE(run([&] { return listeners_[0].completions[2] == 1; }));
  EXPECT_FALSE(transports_[0]->broken(2));
}

TEST_F(Transports, AFullNetworkIsTriedAgain) {
  ASSERT_TRUE(put(1));
  network_.full = true;
  for (uint32_t signal = 0; signal < 3; ++signal)
    ASSERT_TRUE(post(1, NetworkRequest::Kind::signal, 0));
  for (uint32_t round = 0; round < 100; ++round)
    for (auto& transport : transports_) transport->poll();
  EXPECT_EQ(memory_[1][0], 0u);
  network_.full = false;
  EXPECT_TRUE(run([&] { return memory_[1][0] == 3 && listeners_[0].completions[1] == 4; }));
}

/// The receiver's buffers are few, and it fails the test if more messages come.
TEST_F(Transports, ManySignalsStayWithinTheCreditsOfTheirReceiver) {
  uint32_t posted = 0;
  EXPECT_TRUE(run([&] {
    if (posted < 1000 && post(1, NetworkRequest::Kind::signal, 0)) ++posted;
    return memory_[1][0] == 1000;
  }));
}

TEST_F(Transports, SettlesOnceAllHasTakenEffect) {
  ASSERT_TRUE(put(1));
  ASSERT_TRUE(transports_[0]->settle(1, 0, 1));
  EXPECT_TRUE(run([&] { return listeners_[0].settled_turn == 1; }));
}

TEST_F(Transports, ARegionIsWithdrawnOnceItsWritersHaveLetGo) {
  ASSERT_TRUE(put(1));
  ASSERT_TRUE(run([&] { return listeners_[0].completions[1] == 1; }));
  transports_[1]->withdraw(region_of_key(kKey));
  EXPECT_EQ(transports_[1]->holder_of(region_of_key(kKey)), 0u);
  ASSERT_TRUE(run([&] { return !transports_[1]->holder_of(region_of_key(kKey)); }));
  ASSERT_TRUE(run([&] { return post(1, NetworkRequest::Kind::put, 8) || listeners_[0].refusal; }));
  EXPECT_EQ(listeners_[0].refusal, NetworkCheck::target);
}

/// A peer that says nothing for long is broken off, and the memory is its owner's.
TEST_F(Transports, ASilentPeerDoesNotKeepMemory) {
  ASSERT_TRUE(put(1));
  ASSERT_TRUE(run([&] { return listeners_[0].completions[1] == 1; }));
  transports_[1]->withdraw(region_of_key(kKey));
  // Rank 0's thread does not run any more.
  const TimePoint until = Clock::now() + std::chrono::seconds(60);
  while (transports_[1]->holder_of(region_of_key(kKey)) && Clock::now() < until)
    transports_[1]->poll();
  EXPECT_EQ(transports_[1]->holder_of(region_of_key(kKey)), std::nullopt);
  EXPECT_EQ(transports_[1]->broken(0), "it does not let go of memory that was deregistered");
  EXPECT_EQ(transports_[1]->broken(2), std::nullopt);
}

TEST_F(Transports, ASilentPeerIsNoticed) {
  ASSERT_TRUE(post(1, NetworkRequest::Kind::signal, 0));
  // Rank 1's thread does not run any more.
  const TimePoint until = Clock::now() + std::chrono::seconds(60);
  while (transports_[0]->silent_for(1) < std::chrono::milliseconds(300) && Clock::now() < until)
    transports_[0]->poll();
  EXPECT_GE(transports_[0]->silent_for(1), std::chrono::milliseconds(300));
  EXPECT_TRUE(run([&] { return transports_[0]->silent_for(1).count() == 0; }));
}

}  // namespace
}  // namespace tokenyard::libfabric
#endif
