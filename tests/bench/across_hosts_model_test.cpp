// The arithmetic of the model of exchanges between hosts. Expected values are worked out by hand
// from what the model claims: 50 GB/s, packets of 4096 bytes with 70 of headers, 3 us, 10 million
// messages per second.

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <numeric>
#include <set>

#include "bench/across_hosts_model/deep_ep_v1.hpp"
#include "bench/across_hosts_model/events.hpp"
#include "bench/across_hosts_model/ledger.hpp"
#include "bench/across_hosts_model/routing.hpp"
#include "bench/across_hosts_model/wire.hpp"

namespace tokenyard::bench {
namespace {

constexpr Time kUs = 1'000'000;  ///< picoseconds

TEST(ModelCosts, AByteAtFiftyGigabytesPerSecondTakesTwentyPicoseconds) {
  EXPECT_EQ(Costs::at(50, 1), 20u);
  EXPECT_EQ(Costs::at(50, 50'000), 1 * kUs);
  EXPECT_EQ(Costs::at(160, 16'000), 100'000u);
}

TEST(ModelCosts, EachPacketHasSeventyBytesOfHeaders) {
  const Costs costs;
  EXPECT_EQ(costs.on_link(8), 78u * 20);                   // A signal is one packet.
  EXPECT_EQ(costs.on_link(4096), 4166u * 20);              // So is a full one.
  EXPECT_EQ(costs.on_link(4097), (4097u + 140) * 20);      // One byte more makes two.
  EXPECT_EQ(costs.on_link(14'336), (14'336u + 280) * 20);  // A BF16 row of 7168: four.
  EXPECT_EQ(costs.on_link(4096, 0.5), 4166u * 40);         // At half of the rate.
}

TEST(ModelLengths, ShortRowsAreChargedInFull) {
  const Lengths slots{.row = 448, .full_row = 14'336, .slot = 560, .full_slot = 14'448};
  EXPECT_EQ(slots.full(448), 14'336);
  EXPECT_EQ(slots.full(3 * 560), 3 * 14'448);
  EXPECT_EQ(slots.full(100), 100);
  const Lengths message{.row = 528, .full_row = 7392, .head = 3088};
  EXPECT_EQ(message.full(16), 16);
  EXPECT_EQ(message.full(3088), 3088);
  EXPECT_EQ(message.full(3088 + 10 * 528), 3088 + 10 * 7392);
}

TEST(ModelEvents, LanesThatResumeTogetherComeBeforeLaterEvents) {
  Events events;
  const auto lane = [&](uintptr_t i) { return reinterpret_cast<Lane*>(0x1000 + 64 * i); };
  events.resume(30, lane(3));
  for (const uintptr_t i : {0, 1, 2}) events.resume(20, lane(i));
  EXPECT_EQ(events.next(), 20u);
  EXPECT_EQ(events.take().lane, lane(0));
  events.resume(10, lane(4));  // Earlier than the two that are left.
  EXPECT_EQ(events.next(), 10u);
  EXPECT_EQ(events.take().lane, lane(4));
  EXPECT_EQ(events.take().lane, lane(1));
  EXPECT_EQ(events.take().lane, lane(2));
  EXPECT_EQ(events.take().lane, lane(3));
  EXPECT_TRUE(events.empty());
}

/// Two ranks with a queue each way, and what they see of a word of signals.
class ModelWire : public testing::Test {
 protected:
  ModelWire() {
    for (uint32_t rank = 0; rank < 2; ++rank)
      wire_.set_arena(rank, memory_[rank].data(), memory_[rank].size());
    wire_.begin(events_, {}, {}, [this](const void* word, Time at) {
      if (word == memory_[1].data()) landed_.push_back(at);
    });
  }
  void post(NetworkRequest::Kind kind, uint32_t bytes) {
    QueuePair& pair = wire_.pair(0, 1);
    NetworkRequest& request = pair.ring[pair.posted % QueuePair::kSlots];
    request = {};
    request.kind = kind;
    request.target = kind == NetworkRequest::Kind::put ? 64 : 0;
    request.addend = 1;
    request.sources[0] = {.key = 1, .bytes = bytes, .from = memory_[0].data()};
    ++pair.posted;
    ASSERT_TRUE(wire_.note_post(&pair.posted, 0));
  }
  void run() {
    while (!events_.empty()) {
      const Events::Event event = events_.take();
      (*event.what)();
      delete event.what;
    }
  }

  const Costs costs_;
  Wire wire_{2, 1, costs_};
  Events events_;
  std::vector<std::byte> memory_[2] = {std::vector<std::byte>(2 << 20),
                                       std::vector<std::byte>(2 << 20)};
  std::vector<Time> landed_;
};

/// 100 ns for the card to begin it, 1.56 on the link, 3000 of latency.
TEST_F(ModelWire, TenMillionSignalsTakeASecond) {
  for (uint32_t i = 0; i < 20; ++i) post(NetworkRequest::Kind::signal, 0);
  run();
  ASSERT_EQ(landed_.size(), 20u);
  EXPECT_EQ(landed_[0], 3'101'560u);
  EXPECT_EQ(landed_[9], 4'001'560u);
  EXPECT_EQ(landed_[19], 5'001'560u);
}

/// A mebibyte is 256 packets of 4166 bytes: 21329.92 ns. The signal behind it has been begun
/// meanwhile.
TEST_F(ModelWire, ASignalLandsBehindItsPut) {
  post(NetworkRequest::Kind::put, 1 << 20);
  post(NetworkRequest::Kind::signal, 0);
  run();
  ASSERT_EQ(landed_.size(), 1u);
  EXPECT_EQ(landed_[0], 100'000u + 21'329'920 + 1'560 + 3'000'000);
  EXPECT_EQ(wire_.pair(0, 1).completed, 2u);
  EXPECT_EQ(wire_.bytes_out(0), (1 << 20) + 8);
  EXPECT_EQ(wire_.bytes_in(1), (1 << 20) + 8);
}

TEST(ModelLedger, ARowReplacesTheOneOfItsCaseAndShape) {
  const std::string path = testing::TempDir() + "across_hosts_model_ledger.json";
  std::remove(path.c_str());
  const auto row = [](const std::string& name, uint32_t ranks, double us) {
    return Ledger::Json{{"case", name}, {"ranks", ranks}, {"floor", us}};
  };
  {
    Ledger ledger(path, {{"gpu", "modelled"}});
    ledger.add(row("a", 16, 1));
    ledger.add(row("a", 32, 2));
  }
  Ledger(path, {{"gpu", "modelled"}}).add(row("a", 16, 3));
  Ledger(path, {{"gpu", "modelled"}}).add(row("b", 16, 4));
  std::ifstream file(path);
  const Ledger::Json read = Ledger::Json::parse(file);
  EXPECT_EQ(read.at("environment").at("gpu"), "modelled");
  ASSERT_EQ(read.at("rows").size(), 3u);
  EXPECT_EQ(read.at("rows")[0], row("a", 16, 3));
  EXPECT_EQ(read.at("rows")[1], row("a", 32, 2));
  EXPECT_EQ(read.at("rows")[2], row("b", 16, 4));
}

constexpr RoutedShape kEp64{.hosts = 8,
                            .locals = 8,
                            .experts = 256,
                            .topk = 8,
                            .tokens = 512,
                            .routing = Routing::group_limited};

TEST(ModelRouting, GroupLimitedTokensGoToFourHostsAtMost) {
  const std::vector<uint8_t> chosen = ranks_chosen(kEp64, choices_of(kEp64, 5));
  uint32_t copies = 0;
  for (uint32_t token = 0; token < kEp64.tokens; ++token) {
    uint32_t hosts = 0;
    for (uint32_t host = 0; host < 8; ++host) hosts += chosen[token * 8 + host] != 0;
    EXPECT_LE(hosts, 4u);
    copies += hosts;
  }
  // The best expert of each chosen host is nearly always among the eight.
  EXPECT_GT(copies, 512 * 3.8);
}

TEST(ModelRouting, ChoicesAreDistinctWhateverTheRouting) {
  for (const Routing routing : {Routing::uniform, Routing::zipf, Routing::group_limited}) {
    RoutedShape shape = kEp64;
    shape.routing = routing;
    const std::vector<int64_t> ids = choices_of(shape, 0);
    ASSERT_EQ(ids.size(), 512u * 8);
    for (uint32_t token = 0; token < 512; ++token)
      EXPECT_EQ(std::set<int64_t>(ids.begin() + token * 8, ids.begin() + token * 8 + 8).size(), 8u);
  }
}

TEST(ModelRouting, ZipfsFirstExpertIsInMostTokens) {
  RoutedShape shape = kEp64;
  shape.routing = Routing::zipf;
  std::vector<uint32_t> times(256, 0);
  for (const int64_t id : choices_of(shape, 1)) ++times[static_cast<size_t>(id)];
  // Its weight of 1 is a quarter of all (the sum of r^-1.2 up to 256 is 3.94), in eight draws.
  EXPECT_GT(*std::max_element(times.begin(), times.end()), 512 * 3 / 4);
  EXPECT_LT(std::accumulate(times.begin(), times.end(), 0u) / 256, 512u / 8);
}

/// Of 64 tokens, each for every rank of both hosts: 64 rows of 7392 bytes cross each link, in slots
/// of 7472 (8 bytes about the source, 64 of ids and weights, in units of 16).
TEST(DeepEpV1Model, TheFloorIsWhatItsRowsAndTailsTakeOnTheLink) {
  const RoutedShape all{.hosts = 2, .locals = 8, .experts = 16, .topk = 16, .tokens = 64};
  const DeepEpV1Time time = model_deep_ep_v1(DeepEpV1::published(16), all, 7392, Costs{});
  const double data = 64 * 7472.0;
  EXPECT_GT(time.floor_us, data / 50e3);
  EXPECT_LT(time.floor_us, 1.03 * data / 50e3);
  EXPECT_GT(time.us, time.floor_us + 6);  // Counts and rows take a latency each.
  EXPECT_NEAR(time.counted_gb_s, 2 * time.over_link_gb_s, 1e-9);
  EXPECT_NEAR(time.over_link_gb_s, 64 * 7392 / time.us * 1e-3, 1e-9);
}

struct Published {
  uint32_t hosts;
  double gb_s;
};
class DeepEpV1Published : public testing::TestWithParam<Published> {};

/// Rates of DeepEP V1's documentation: 4096 tokens of 7168, FP8, of rows for a token's own host
/// too.
TEST_P(DeepEpV1Published, IsWithinTenPercent) {
  const RoutedShape shape{.hosts = GetParam().hosts,
                          .locals = 8,
                          .experts = 256,
                          .topk = 8,
                          .tokens = 4096,
                          .routing = Routing::group_limited};
  const DeepEpV1Time time =
      model_deep_ep_v1(DeepEpV1::published(shape.ranks()), shape, 7168 + 224, Costs{});
  EXPECT_NEAR(time.counted_gb_s, GetParam().gb_s, 0.1 * GetParam().gb_s);
}
INSTANTIATE_TEST_SUITE_P(Hosts, DeepEpV1Published,
                         testing::Values(Published{2, 43}, Published{4, 58}, Published{8, 51}),
                         [](const auto& info) {
                           return "Ep" + std::to_string(8 * info.param.hosts);
                         });

}  // namespace
}  // namespace tokenyard::bench
