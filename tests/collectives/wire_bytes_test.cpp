/// The bytes that processes of another build read: these and no others.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <span>
#include <string>

#include "collectives/transports/channel_endpoint.hpp"
#include "collectives/transports/connect_request.hpp"
#include "control/control_endpoint.hpp"
#include "control/store_protocol.hpp"
#include "membership/message_codec.hpp"
#include "net/handshake.hpp"
#include "net/sealed_frame.hpp"

namespace tokenyard::collectives {
namespace {

const net::Key kKey("a secret", "test");

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

TEST(WireBytes, Hello) {
  net::Handshake dialler(net::Handshake::Side::dialler, kKey,
                         {.purpose = net::Purpose::newcomer,
                          .job = 0x0123456789abcdef,
                          .self = {0xa1a2a3a4, 0xb1b2b3b4b5b6b7b8},
                          .epoch = 0xc1c2c3c4c5c6c7c8,
                          .sought = 0xd1d2d3d4d5d6d7d8});
  const auto hello = dialler.take_output();
  ASSERT_EQ(hello.size(), net::Handshake::kHelloBytes);
  // A random nonce follows.
  EXPECT_EQ(hex(std::span(hello).first(48)),
            "5459434c04000200a4a3a2a100000000b8b7b6b5b4b3b2b1c8c7c6c5c4c3c2c1"
            "efcdab8967452301d8d7d6d5d4d3d2d1");
}

TEST(WireBytes, SealedFrame) {
  const std::vector<std::byte> payload{std::byte{1}, std::byte{2}, std::byte{3}};
  net::Sealer sealer(kKey);
  EXPECT_EQ(hex(sealer.seal(0x1234, payload)),
            "03000000341200000102031756a63ad47554f39e6c6a34ec0e0e44");
  EXPECT_EQ(hex(sealer.seal(0x1234, payload)),
            "030000003412000001020362c9cfef6e3878038395ef31707caa44");
}

TEST(WireBytes, ConnectRequest) {
  const ConnectRequest connect_request{.kind = ConnectRequestKind::refusal,
                                       .channel = {.epoch = 0x0102030405060708,
                                                   .group = 0x1112131415161718,
                                                   .lane = Lane::point_to_point,
                                                   .initiator = {0x21222324, 0x3132333435363738},
                                                   .acceptor = {0x41424344, 0x5152535455565758}},
                                       .bytes = 0x6162636465666768,
                                       .file = 0x7172737475767778,
                                       .stripe = 0x81828384,
                                       .stripes = 0x91929394,
                                       .nonce = 0xa1a2a3a4a5a6a7a8,
                                       .words = "no"};
  EXPECT_EQ(hex(encode(connect_request, kKey)),
            "5459574901000301080706050403020118171615141312112423222138373635"
            "3433323144434241585756555453525168676665646362617877767574737271"
            "8483828194939291a8a7a6a5a4a3a2a16d696e2d0e6b1d308d63a14d8bfdb7e9"
            "ce31875cb171c28ab28a4f69045f7d2f6e6f");
}

TEST(WireBytes, ChannelEndpoint) {
  EXPECT_EQ(hex(encode(ChannelEndpoint{"ab", "c", "", 0x1234})), "010200616201006300003412");
}

TEST(WireBytes, ControlEndpoint) {
  EXPECT_EQ(hex(encode(control::ControlEndpoint{.member = {7, 0x0102030405060708},
                                                .size = 9,
                                                .address = "ab",
                                                .port = 0x1234,
                                                .contact = {std::byte{0xff}}})),
            "0700000000000000080706050403020109000000000000000200000000000000"
            "616234120000000000000100000000000000ff");
}

TEST(WireBytes, RequestToAStore) {
  EXPECT_EQ(hex(control::store_protocol::encode(control::store_protocol::Request{
                .verb = control::store_protocol::Verb::compare_and_set,
                .key = "k",
                .expected = control::Store::Value{std::byte{0xfe}},
                .value = {std::byte{0xff}}})),
            "01000000000000006b01000000000000000100000000000000fe010000000000"
            "0000ff");
}

TEST(WireBytes, Message) {
  const membership::Message message{.epoch = 0x0102030405060708,
                                    .body = membership::Heartbeat{.waiting = {{2, 99}},
                                                                  .suspected = {0, 3},
                                                                  .wants_change = true,
                                                                  .recovers = false,
                                                                  .drains = true}};
  EXPECT_EQ(hex(encode(message)),
            "0008070605040302010100000002000000630000000000000002000000000000"
            "0003000000010001");
}

// The encoding had once changed, and the protocol's version had not.
TEST(WireBytes, Promise) {
  const membership::Message message{
      .epoch = 7,
      .body = membership::Promise{.ballot = {3, 1},
                                  .progress = {{.group = 9,
                                                .slots = {1, 3},
                                                .committed = 4,
                                                .begun = 5,
                                                .label = 0x1112131415161718,
                                                .stage = GroupStage::closing}},
                                  .suspected = {2},
                                  .timeout_reports = {{1, 9, 5}, {3, 9, 5}, {0, 10, 6}},
                                  .admits = {6},
                                  .waiting = {{6, 99}},
                                  .recovers = true}};
  EXPECT_EQ(hex(encode(message)),
            "0407000000000000000300000000000000010000000001000000090000000000"
            "0000020000000100000003000000040000000000000005000000000000001817"
            "1615141312110101000000020000000200000009000000000000000500000000"
            "0000000200000001000000030000000a00000000000000060000000000000001"
            "0000000000000001000000060000000000000001000000060000006300000000"
            "00000001");
}

}  // namespace
}  // namespace tokenyard::collectives
