#include "fabric/tcp/frame.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "fabric/tcp/rendezvous.hpp"

namespace tokenyard::tcp {
namespace {

Frame example() {
  return {FrameHeader{.kind = static_cast<uint16_t>(FrameKind::collective),
                      .job = 0x0123456789abcdef,
                      .rank = 3,
                      .size = 4,
                      .generation = 5,
                      .sequence = 0xfedcba9876543210},
          "barrier x",
          {std::byte{1}, std::byte{2}}};
}

FrameHeader header_of(const std::vector<std::byte>& bytes) {
  return decode_header(std::span<const std::byte, kHeaderBytes>(bytes.data(), kHeaderBytes));
}

TEST(Frame, IsTheseBytes) {
  const auto bytes = encode(example());
  const uint8_t expected[] = {
      'T',  'Y',  'R',  'D',  1,    0,    5,    0,     // magic, version, kind
      0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01,  // job
      3,    0,    0,    0,    4,    0,    0,    0,     // rank, size
      5,    0,    0,    0,    9,    0,    0,    0,     // generation, bytes of what
      0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe,  // sequence
      2,    0,    0,    0,    0,    0,    0,    0,     // bytes of payload
      'b',  'a',  'r',  'r',  'i',  'e',  'r',  ' ',  'x', 1, 2};
  ASSERT_EQ(bytes.size(), sizeof expected);
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof expected), 0);
  const FrameHeader header = header_of(bytes);
  EXPECT_EQ(header.rank, 3u);
  EXPECT_EQ(header.sequence, 0xfedcba9876543210u);
  EXPECT_EQ(header.what_bytes, 9u);
  EXPECT_EQ(header.payload_bytes, 2u);
}

TEST(Frame, JobsAreNumberedByFnv1aOfTheirNames) {
  EXPECT_EQ(net::job_number("foobar"), 0x85944171f73967e8);
}

TEST(Frame, SaysWhatIsWrongWithAHeader) {
  const FrameRules rules{.job = example().header.job};
  const auto judged = [&](auto change) {
    FrameHeader header = example().header;
    change(header);
    return objection(header, rules).value_or("");
  };
  EXPECT_EQ(judged([](FrameHeader&) {}), "");
  EXPECT_EQ(judged([](FrameHeader& header) { header.magic = 0x20544547; }),
            "does not speak Tokenyard's protocol");
  EXPECT_EQ(judged([](FrameHeader& header) { header.version = 9; }),
            "speaks version 9 of the protocol, not 1");
  EXPECT_EQ(judged([](FrameHeader& header) { header.job ^= 1; }),
            "belongs to another job or session");
  EXPECT_EQ(judged([](FrameHeader& header) { header.kind = 77; }),
            "sent a frame of unknown kind 77");
  EXPECT_EQ(judged([](FrameHeader& header) { header.kind = 0; }), "sent a frame of unknown kind 0");
  EXPECT_EQ(judged([](FrameHeader& header) { header.payload_bytes = uint64_t{1} << 60; }),
            "sent a frame of 0 + 1152921504606846976 bytes, over the limit of 4096 + 4096");
  EXPECT_EQ(judged([](FrameHeader& header) { header.what_bytes = 4097; }),
            "sent a frame of 4097 + 0 bytes, over the limit of 4096 + 4096");
}

TEST(Frame, CarriesWhatARendezvousSays) {
  const Attendance self{.where = {.rank = 2, .size = 3, .job = "night shift"},
                        .listener_port = 4711};
  const Hello said = read_hello(hello(self));
  EXPECT_EQ(said.job, "night shift");
  EXPECT_EQ(said.listener_port, 4711);
  EXPECT_EQ(read_progress(progress_report(self, {1, 2})), (std::vector<uint32_t>{1, 2}));
  const Refusal no = read_refusal(refusal(self, {"size", "3", "4", true}));
  EXPECT_EQ(no.argument, "size");
  EXPECT_EQ(no.expected, "3");
  EXPECT_EQ(no.seen, "4");
  EXPECT_TRUE(no.come_again);
  const Directory sent{.session = 99,
                       .listeners = {{asio::ip::make_address("127.0.0.1"), 1},
                                     {asio::ip::make_address("::1"), 65535}}};
  const Directory got = read_connect_reply(connect_reply(self, sent));
  EXPECT_EQ(got.session, 99u);
  EXPECT_EQ(got.listeners, sent.listeners);
}

/// Every frame cut anywhere, and every frame with a byte changed, is accepted or refused; none is
/// read past its end (the address sanitizer would report it).
TEST(Frame, GarbledPayloadsAreRefused) {
  const Attendance self{.where = {.rank = 0, .size = 2}, .listener_port = 1};
  const Directory directory{.session = 1, .listeners = {{asio::ip::make_address("127.0.0.1"), 1}}};
  std::mt19937 random(1);
  int refused = 0;
  const auto read_all = [&](const Frame& frame) {
    try {
      switch (static_cast<FrameKind>(frame.header.kind)) {
        case FrameKind::hello:
          return (void)read_hello(frame);
        case FrameKind::progress:
          return (void)read_progress(frame);
        case FrameKind::connect_reply:
          return (void)read_connect_reply(frame);
        default:
          return (void)read_refusal(frame);
      }
    } catch (const net::ProtocolError&) {
      ++refused;
    }
  };
  for (const Frame& frame :
       {hello(self), progress_report(self, {0, 1, 2}), connect_reply(self, directory),
        refusal(self, {"a", "b", "c", false})}) {
    const int before = refused;
    for (size_t length = 0; length < frame.payload.size(); ++length) {
      Frame cut = frame;
      cut.payload.resize(length);
      read_all(cut);
    }
    EXPECT_EQ(refused - before, static_cast<int>(frame.payload.size())) << "cut frames";
    for (int round = 0; round < 200; ++round) {
      Frame changed = frame;
      changed.payload[random() % changed.payload.size()] = static_cast<std::byte>(random());
      read_all(changed);
    }
    Frame longer = frame;
    longer.payload.push_back({});
    const int shorter = refused;
    read_all(longer);
    EXPECT_EQ(refused, shorter + 1) << "bytes left over";
  }
  EXPECT_THROW(read_connect_reply(hello(self)), net::ProtocolError) << "a frame of another kind";
}

}  // namespace
}  // namespace tokenyard::tcp
