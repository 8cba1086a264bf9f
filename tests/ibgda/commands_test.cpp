/// Compares commands with bytes written by hand from the tables of the PRM, which count 32-bit
/// words.
#include "ibgda/commands.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace tokenyard::ibgda {
namespace {

using Words = std::map<uint32_t, uint32_t>;

/// Returns the words of a command that are not 0, by their byte offset.
Words words_of(const prm::Command& command) {
  Words words;
  const auto bytes = command.bytes();
  for (uint32_t at = 0; at + 4 <= bytes.size(); at += 4) {
    uint32_t word = 0;
    for (uint32_t byte = 0; byte < 4; ++byte)
      word = word << 8 | std::to_integer<uint32_t>(bytes[at + byte]);
    if (word != 0) words[at] = word;
  }
  return words;
}
std::string text_of(const Words& words) {
  std::string text;
  for (const auto& [at, word] : words) text += fmt::format("{:#05x}: {:#010x}\n", at, word);
  return text;
}
void expect_words(const prm::Command& command, size_t bytes, const Words& words) {
  EXPECT_EQ(command.bytes().size(), bytes);
  EXPECT_EQ(text_of(words_of(command)), text_of(words));
}

const QueuePlan kQueue{.domain = 0x00abcdef,
                       .registers = 0x123456,
                       .event_queue = 0x77,
                       .memory = 0x89abcdef,
                       .log_slots = 7,
                       .blocks = 0x1000,
                       .completions = 0x3000,
                       .pair_record = 0x100005000,
                       .completion_record = 0x100005040};
const PathPlan kRoce{.port = 2,
                     .pkey_index = 0x0102,
                     .gid_index = 5,
                     .traffic_class = 106,
                     .service_level = 3,
                     .mtu = 5,
                     .retries = 6,
                     .ack_timeout = 18,
                     .log_reads_asked = 4,
                     .log_reads_served = 4,
                     .ethernet = true};
const PeerPlan kPeer{
    .queue_pair = 0xfedcba,
    .lid = 0x1234,
    .is_global = true,
    .gid = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    .route = {.mac = {0x11, 0x22, 0x33, 0x44, 0x55, 0x66}, .udp_source_port = 0xc001}};

TEST(IbgdaCommands, AKeyBeginsAtAddressZero) {
  const prm::Command command = create_key({.domain = 0x00abcdef,
                                           .low_byte = 0x1f,
                                           .memory = {.handle = 1, .key = 0x11223344},
                                           .address = 0x7f0012345678,
                                           .bytes = 0x1234});
  expect_words(command, 0x110 + 4 * 16,
               {{0x00, 0x02000000},   // CREATE_MKEY
                {0x10, 0x00006e00},   // a, rw, no rr, lw, lr; access mode 2
                {0x14, 0xffffff1f},   // any queue pair; low byte
                {0x1c, 0x00abcdef},   // protection domain; the start address, 0x20, is 0
                {0x2c, 0x00001234},   // length
                {0x44, 4},            // octwords of translations
                {0x60, 4},            // and those sent
                {0x110, 0x00001234},  // KLM: bytes, key, address
                {0x114, 0x11223344},
                {0x118, 0x00007f00},
                {0x11c, 0x12345678}});
}

TEST(IbgdaCommands, AnEntryOfAKeyHasAtMostTwoGibibytes) {
  EXPECT_EQ(klms_of(1), 1u);
  EXPECT_EQ(klms_of(kKlmBytesMax), 1u);
  EXPECT_EQ(klms_of(kKlmBytesMax + 1), 2u);
  const prm::Command command = create_key({.domain = 1,
                                           .low_byte = 0,
                                           .memory = {.handle = 1, .key = 9},
                                           .address = 0x40000000,
                                           .bytes = 4 * kKlmBytesMax + 0x10});
  const Words words = words_of(command);
  EXPECT_EQ(command.bytes().size(), 0x110u + 8 * 16);
  EXPECT_EQ(words.at(0x44), 8u);
  EXPECT_EQ(words.at(0x28), 2u) << "the length's upper half";
  EXPECT_EQ(words.at(0x2c), 0x10u);
  EXPECT_EQ(words.at(0x110), 0x80000000u);
  EXPECT_EQ(words.at(0x11c), 0x40000000u);
  EXPECT_EQ(words.at(0x12c), 0xc0000000u);
  EXPECT_EQ(words.at(0x150), 0x10u);
  EXPECT_EQ(words.at(0x158), 2u);
  EXPECT_EQ(words.at(0x15c), 0x40000000u);
  EXPECT_FALSE(words.contains(0x160)) << "entries that fill the list up are empty";
}

TEST(IbgdaCommands, ACompletionQueueIsCollapsed) {
  expect_words(create_completion_queue(kQueue), 0x110,
               {{0x00, 0x04000000},  // CREATE_CQ
                {0x10, 0x02120000},  // doorbell record in a umem; collapsed; overrun ignored
                {0x14, 0x89abcdef},  // umem of the record
                {0x1c, 0x07123456},  // log of entries; page of registers
                {0x24, 0x00000077},  // event queue
                {0x48, 0x00000001},  // the record's offset
                {0x4c, 0x00005040},
                {0x54, 0x00003000},  // the entries' offset
                {0x58, 0x89abcdef},  // umem of the entries
                {0x5c, 0x80000000}});
}

TEST(IbgdaCommands, AQueuePairOnlySends) {
  expect_words(create_queue_pair(kQueue, 0x654321), 0x110,
               {{0x00, 0x05000000},  // CREATE_QP
                {0x18, 0x00001800},  // reliable connection; migrated
                {0x1c, 0x00abcdef},  // protection domain
                {0x20, 0x00003800},  // log of entries: 7
                {0x24, 0x00123456},  // page of registers
                {0x94, 0x00654321},  // completion queue of sends
                {0xb4, 0x00654321},  // of receives
                {0xb8, 0x00000001},  // the doorbell record's offset
                {0xbc, 0x00005000},
                {0xc4, 0x03000000},  // no receive queue
                {0xe8, 0x10000000},  // doorbell record in a umem
                {0xfc, 0x89abcdef},
                {0x104, 0x00001000},  // the entries' offset
                {0x108, 0x89abcdef},
                {0x10c, 0x80000000}});
}

TEST(IbgdaCommands, InitNamesPortAndPartition) {
  expect_words(to_init(0xfedcba, kRoce), 0x110,
               {{0x00, 0x05020000},  // RST2INIT_QP
                {0x08, 0x00fedcba},
                {0x18, 0x00001800},
                {0x30, 0x00000102},  // index of the partition's key
                {0x54, 0x00020000},  // port
                {0xa8, 0x00036000}});
}

TEST(IbgdaCommands, RoceGoesToAMacAddress) {
  expect_words(to_receive(0x00abcdef, kRoce, kPeer), 0x110,
               {{0x00, 0x05030000},  // INIT2RTR_QP
                {0x08, 0x00abcdef},
                {0x20, 0xbe000000},  // MTU 5, messages of 2^30 bytes
                {0x2c, 0x00fedcba},  // the peer's queue pair
                {0x30, 0x00000102},
                {0x38, 0x00050040},  // index of the GID, hop limit
                {0x40, 0x00010203},  // the peer's GID
                {0x44, 0x04050607},
                {0x48, 0x08090a0b},
                {0x4c, 0x0c0d0e0f},
                {0x50, 0x001ac001},  // DSCP 26, UDP source port
                {0x54, 0x30021122},  // priority 3, port, MAC address
                {0x58, 0x33445566},
                {0xa8, 0x00836000},    // 2^4 atomics served; up to 8 bytes; write, atomic
                {0xac, 0x0c000000}});  // delay of a receiver that is not ready
}

TEST(IbgdaCommands, InfiniBandGoesToALid) {
  PathPlan path = kRoce;
  path.ethernet = false;
  PeerPlan peer = kPeer;
  Words words{{0x00, 0x05030000}, {0x08, 0x00abcdef}, {0x20, 0xbe000000},
              {0x2c, 0x00fedcba}, {0x30, 0x00000102}, {0x34, 0x00801234},  // global; LID
              {0x38, 0x00050040}, {0x3c, 0x06a00000},                      // traffic class
              {0x40, 0x00010203}, {0x44, 0x04050607}, {0x48, 0x08090a0b},
              {0x4c, 0x0c0d0e0f}, {0x54, 0x03020000},  // service level, port
              {0xa8, 0x00836000}, {0xac, 0x0c000000}};
  expect_words(to_receive(0x00abcdef, path, peer), 0x110, words);
  // Within a subnet the LID is enough.
  peer.is_global = false;
  words[0x34] = 0x00001234;
  for (const uint32_t at : {0x38u, 0x40u, 0x44u, 0x48u, 0x4cu}) words.erase(at);
  expect_words(to_receive(0x00abcdef, path, peer), 0x110, words);
}

TEST(IbgdaCommands, SendingNamesRetries) {
  expect_words(to_send(0x00abcdef, kRoce), 0x110,
               {{0x00, 0x05040000},  // RTR2RTS_QP
                {0x08, 0x00abcdef},
                {0x18, 0x00001800},
                {0x38, 0x90000000},    // timeout 18
                {0x88, 0x8086e000}});  // acknowledge every 2^8; 2^4 atomics; retries 6 and 7
  expect_words(to_error(0x00abcdef), 0x10, {{0x00, 0x05070000}, {0x08, 0x00abcdef}});
}

TEST(IbgdaCommands, AFieldIsReadWhereItWasSet) {
  prm::Command command(0, 24);
  command.set({61, 7}, 0x55);
  command.set({70, 64}, 0x8123456789abcdef);
  EXPECT_EQ(prm::get(command.bytes(), {61, 7}), 0x55u);
  EXPECT_EQ(prm::get(command.bytes(), {70, 64}), 0x8123456789abcdefu);
  EXPECT_EQ(prm::get(command.bytes(), {0, 61}), 0u);
}

}  // namespace
}  // namespace tokenyard::ibgda
