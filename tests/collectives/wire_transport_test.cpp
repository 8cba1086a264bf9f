// How transports choose, fall back, and reject strangers.
#include "collectives/transports/wire_transport.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "collectives/resource_limit.hpp"
#include "collectives/wire_ranks.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class WireTransportTest : public testing::Test {
 protected:
  static ChannelEndpoint endpoint_of(WireTransport& transport) {
    return *decode_contact(transport.contact());
  }

  /// Sends a byte there and one back.
  static bool works(WireRanks& ranks, GroupId group) {
    const auto low = ranks[0].channel(group, Lane::collective, 1);
    const auto high = ranks[1].channel(group, Lane::collective, 0);
    const std::vector<std::byte> message{std::byte{42}};
    std::vector<std::byte> there(1), back(1);
    return ranks.poll_until("room", [&] { return low->send_some(message) == 1; }) &&
           ranks.poll_until("a byte", [&] { return high->receive_some(there) == 1; }) &&
           ranks.poll_until("room", [&] { return high->send_some(there) == 1; }) &&
           ranks.poll_until("a byte back", [&] { return low->receive_some(back) == 1; }) &&
           back == message;
  }

  /// Returns the number of descriptors that this process has open.
  static size_t descriptors() {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}) - 1);
  }
};

TEST_F(WireTransportTest, SharesMemoryWithinAHost) {
  WireRanks ranks(2);
  ranks.begin_epoch(1);
  EXPECT_TRUE(ranks[0].same_host(1));
  EXPECT_TRUE(works(ranks, 1));
  EXPECT_THAT(ranks[0].reason(1), IsEmpty());
  EXPECT_THAT(ranks[0].reason(7), HasSubstr("no member"));
}

TEST_F(WireTransportTest, TakesOtherHostNamesForOtherHosts) {
  WireRanks ranks(
      2, [](WireOptions& options) { options.host = "host " + std::to_string(options.self.slot); });
  ranks.begin_epoch(1);
  EXPECT_FALSE(ranks[0].same_host(1));
  EXPECT_TRUE(works(ranks, 1));
  EXPECT_THAT(ranks[0].reason(1), IsEmpty());
}

TEST_F(WireTransportTest, NamesWhoIsNoPeer) {
  WireRanks ranks(2);
  EXPECT_THROW(ranks[0].channel(1, Lane::collective, 1), InvalidArgument);
  ranks.begin_epoch(1);
  EXPECT_THROW(ranks[0].channel(1, Lane::collective, 0), InvalidArgument);
  EXPECT_THROW(ranks[0].channel(1, Lane::collective, 2), InvalidArgument);
}

TEST_F(WireTransportTest, ChecksItsOptions) {
  const auto with = [](auto adjust) { WireRanks(1, adjust); };
  EXPECT_THROW(with([](WireOptions& options) { options.stripes = 0; }), InvalidArgument);
  EXPECT_THROW(with([](WireOptions& options) { options.stripes = 17; }), InvalidArgument);
  EXPECT_THROW(with([](WireOptions& options) { options.stripe_bytes = 0; }), InvalidArgument);
  EXPECT_THROW(with([](WireOptions& options) { options.address = "203.0.113.7"; }), OsError);
}

TEST_F(WireTransportTest, GoesOverTcpWhereTheMakerGetsNoMemory) {
  WireRanks ranks(2);
  ranks.begin_epoch(1);
  const ResourceLimit limit(RLIMIT_FSIZE, 4096);
  EXPECT_TRUE(works(ranks, 1));
  EXPECT_TRUE(ranks[0].same_host(1)) << "what algorithms choose by is the same on all ranks";
  EXPECT_THAT(ranks[0].reason(1), HasSubstr("RLIMIT_FSIZE"));
}

TEST_F(WireTransportTest, GoesOverTcpWhereTheTakerGetsNoDescriptor) {
  WireRanks ranks(2);
  ranks.begin_epoch(1);
  const auto low = ranks[0].channel(1, Lane::collective, 1);
  ranks[0].prepare_to_sleep();  // posts the segment
  {
    const ResourceLimit limit(RLIMIT_NOFILE, no_more_descriptors());
    ranks[1].prepare_to_sleep();  // it has arrived, and no descriptor is free for it
  }
  EXPECT_THAT(ranks[1].reason(0), HasSubstr("SCM_RIGHTS"));
  EXPECT_TRUE(works(ranks, 1));
  EXPECT_THAT(ranks[0].reason(1), HasSubstr("SCM_RIGHTS"));
}

TEST_F(WireTransportTest, LetsPeersInWhenItHasDescriptorsAgain) {
  WireRanks ranks(2, [](WireOptions& options) { options.force_tcp = true; });
  ranks.begin_epoch(1);
  const auto low = ranks[0].channel(1, Lane::collective, 1);
  const rlim_t none = no_more_descriptors();
  {
    const ResourceLimit limit(RLIMIT_NOFILE, none);
    ranks.poll_a_while();
    EXPECT_THAT(ranks[0].reason(1), HasSubstr("Too many open files"));
  }
  {
    const ResourceLimit limit(RLIMIT_NOFILE, none + 1);  // enough to connect, not to accept
    ranks.poll_a_while();
    EXPECT_EQ(low->send_some(std::vector<std::byte>(1)), 0u);
  }
  EXPECT_TRUE(works(ranks, 1));
}

TEST_F(WireTransportTest, GoesOverTcpWhereUnixSocketsDoNotReach) {
  WireRanks ranks(2);
  Contacts contacts = ranks.contacts();
  ChannelEndpoint endpoint = *decode_contact(contacts[1]);
  endpoint.mailbox = "tokenyard-wire-of-another-namespace";
  contacts[1] = encode(endpoint);
  ranks[0].begin_epoch(ranks.view(1), contacts);
  ranks[1].begin_epoch(ranks.view(1), contacts);
  EXPECT_TRUE(works(ranks, 1));
  EXPECT_THAT(ranks[0].reason(1), HasSubstr("no process is at"));
}

TEST_F(WireTransportTest, SaysWhyAPeerCannotBeReached) {
  WireRanks ranks(2);
  Contacts contacts = ranks.contacts();
  contacts[1] = {std::byte{77}};
  ranks[0].begin_epoch(ranks.view(1), contacts);
  EXPECT_EQ(ranks[0].channel(1, Lane::collective, 1)->send_some(contacts[1]), 0u);
  EXPECT_THAT(ranks[0].reason(1), HasSubstr("no endpoint"));

  ChannelEndpoint endpoint = endpoint_of(ranks[1]);
  endpoint.host = "elsewhere";
  endpoint.port = 1;  // no process listens there
  contacts[1] = encode(endpoint);
  ranks[0].begin_epoch(ranks.view(2), contacts);
  const auto channel = ranks[0].channel(1, Lane::collective, 1);
  ranks.poll_until("a reason", [&] { return !ranks[0].reason(1).empty(); });
  EXPECT_THAT(ranks[0].reason(1), HasSubstr("refused"));
}

TEST_F(WireTransportTest, UsesAllStripesForLargeMessages) {
  WireRanks ranks(2, [](WireOptions& options) {
    options.force_tcp = true;
    options.stripes = 4;
    options.stripe_bytes = 10'000;  // a multiple of nothing
  });
  ranks.begin_epoch(1);
  ASSERT_TRUE(works(ranks, 1));
  const size_t before = descriptors();
  const auto low = ranks[0].channel(1, Lane::collective, 1);
  const auto high = ranks[1].channel(1, Lane::collective, 0);
  const auto message = bytes_of_seed(1'000'003, 1);
  std::vector<std::byte> got(message.size());
  size_t sent = 0;
  size_t received = 0;
  ranks.poll_until("a large message", [&] {
    sent += high->send_some(std::span(message).subspan(sent));
    received += low->receive_some(std::span(got).subspan(received));
    return received == got.size();
  });
  EXPECT_TRUE(got == message);
  EXPECT_EQ(descriptors(), before + 3 * 2);
}

TEST_F(WireTransportTest, LeavesNothingBehindInAThousandEpochs) {
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  const size_t descriptors_at_first = descriptors();
  for (int round = 0; round < 10; ++round) {
    WireRanks ranks(
        3, [](WireOptions& options) { options.host = options.self.slot == 2 ? "another" : "one"; });
    size_t descriptors_before = 0;
    long mappings_before = 0;
    for (Epoch epoch = 1; epoch <= 100; ++epoch) {
      ranks.begin_epoch(epoch);
      for (const auto& [low, high] : {std::pair<Slot, Slot>{0, 1}, {0, 2}, {1, 2}}) {
        const auto from = ranks[low].channel(1, Lane::collective, high);
        const auto to = ranks[high].channel(1, Lane::collective, low);
        const auto byte = bytes_of_seed(1, 1);
        std::vector<std::byte> got(1);
        ASSERT_TRUE(ranks.poll_until("room", [&] { return from->send_some(byte) == 1; }));
        ASSERT_TRUE(ranks.poll_until("a byte", [&] { return to->receive_some(got) == 1; }));
      }
      if (epoch == 1) {
        descriptors_before = descriptors();
        mappings_before = mappings();
      }
    }
    EXPECT_EQ(descriptors(), descriptors_before);
    // malloc, or a sanitizer's, may have grown; a mapping leaked per epoch would make 99.
    EXPECT_LE(mappings(), mappings_before + 9);
  }
  EXPECT_EQ(descriptors(), descriptors_at_first);
}

}  // namespace
}  // namespace tokenyard::collectives
