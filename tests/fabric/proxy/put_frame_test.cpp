#include "fabric/proxy/put_frame.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "net/protocol_error.hpp"

namespace tokenyard {
namespace {

std::vector<PutFrame> every_kind() {
  PutFrame put{.kind = PutFrameKind::put,
               .queue = 3,
               .epoch = 7,
               .key = 0x1234'05,
               .bytes = 1000,
               .offset = 5'000'000'100,
               .sequence = 9,
               .whole_offset = 5'000'000'000,
               .whole_bytes = 1100};
  PutFrame inlined{.kind = PutFrameKind::put_inline, .inline_bytes = 5, .key = 0x105, .offset = 8};
  inlined.inlined[4] = std::byte{0x5a};
  PutFrame signal{
      .kind = PutFrameKind::signal, .key = 0x105, .offset = 16, .addend = 2, .counts = {1, 2, 3}};
  PutFrame settle{.kind = PutFrameKind::settle, .turn = 70, .counts = {4, 0, 0, 0, 0, 6}};
  PutFrame settled{.kind = PutFrameKind::settled, .turn = 70};
  PutFrame refusal{.kind = PutFrameKind::refusal,
                   .check = NetworkCheck::target_range,
                   .refusal = {.region = 5, .expected = 64, .seen = 72}};
  PutFrame again = put;
  again.origin = kPathsMax;
  PutFrame taken{.kind = PutFrameKind::taken, .turn = 90, .path = 1, .life = 3};
  PutFrame closed{.kind = PutFrameKind::closed, .turn = 90, .path = 5, .life = 1};
  return {put, inlined, signal, settle, settled, refusal, again, taken, closed};
}

TEST(PutFrame, ReadsAsItWasWritten) {
  for (const PutFrame& frame : every_kind())
    EXPECT_EQ(decode_put_frame(encode(frame)), frame) << static_cast<int>(frame.kind);
}

TEST(PutFrame, LiesAsThePageSays) {
  const auto bytes = encode(every_kind()[0]);
  EXPECT_EQ(bytes[0], std::byte{1});
  EXPECT_EQ(bytes[2], std::byte{3});
  EXPECT_EQ(bytes[4], std::byte{7});
  EXPECT_EQ(bytes[8], std::byte{5});
  EXPECT_EQ(bytes[24], std::byte{9});
}

/// A frame that two ends could read differently is none.
TEST(PutFrame, BytesThatNoFieldHoldsAreRefused) {
  for (const PutFrame& frame : every_kind()) {
    const bool full = frame.kind == PutFrameKind::signal || frame.kind == PutFrameKind::settle;
    auto bytes = encode(frame);
    bytes.back() = std::byte{1};
    if (full) continue;
    EXPECT_THROW(decode_put_frame(bytes), net::ProtocolError) << static_cast<int>(frame.kind);
  }
}

TEST(PutFrame, ImpossibleFieldsAreRefused) {
  const auto refused = [](size_t kind, auto change) {
    PutFrame frame = every_kind()[kind];
    change(frame);
    EXPECT_THROW(decode_put_frame(encode(frame)), net::ProtocolError) << kind;
  };
  refused(0, [](PutFrame& frame) { frame.kind = static_cast<PutFrameKind>(0); });
  refused(0, [](PutFrame& frame) { frame.kind = static_cast<PutFrameKind>(7); });
  // A part outside the whole, at either end.
  refused(0, [](PutFrame& frame) { frame.offset = frame.whole_offset - 1; });
  refused(0, [](PutFrame& frame) { ++frame.offset; });
  refused(0, [](PutFrame& frame) { frame.whole_bytes = kNetworkPutMax + 1; });
  refused(0, [](PutFrame& frame) { frame.turn = 1; });
  refused(1, [](PutFrame& frame) { frame.inline_bytes = kNetworkInlineMax + 1; });
  refused(2, [](PutFrame& frame) { frame.bytes = 8; });
  refused(3, [](PutFrame& frame) { frame.addend = 8; });
  refused(3, [](PutFrame& frame) { frame.key = 8; });
  refused(5, [](PutFrame& frame) { frame.check = NetworkCheck::none; });
  refused(5, [](PutFrame& frame) {
    frame.check = static_cast<NetworkCheck>(static_cast<uint32_t>(kLastNetworkCheck) + 1);
  });
}

}  // namespace
}  // namespace tokenyard
