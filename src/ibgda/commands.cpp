#include "ibgda/commands.hpp"

#include <algorithm>

namespace tokenyard::ibgda {

namespace {

constexpr uint32_t kFirstPacket = 0;     ///< packet sequence number at which both ends begin
constexpr uint32_t kLogMessageMax = 30;  ///< kNetworkPutMax is 2^30 bytes
constexpr uint32_t kLogAckEvery = 8;     ///< packets of a long message between acknowledgements
constexpr uint32_t kNotReadyRetries =
    7;                                   ///< without end; nothing here receives, so it never counts
constexpr uint32_t kNotReadyDelay = 12;  ///< 0.64 ms
constexpr uint32_t kHopLimit = 64;
static_assert(kFirstPacket == 0, "fields that are 0 are not set");

prm::Command of_queue_pair(prm::Opcode opcode, uint32_t queue_pair) {
  prm::Command command(opcode, prm::QueuePair::kCommandBytes);
  command.set(prm::kQueuePair, queue_pair);
  return command;
}

void set_route(prm::Command& command, const EthernetRoute& route) {
  uint64_t mac = 0;
  for (const uint8_t byte : route.mac) mac = mac << 8 | byte;
  command.set(prm::QueuePair::kMacHigh, mac >> 32);
  command.set(prm::QueuePair::kMacLow, mac & 0xffffffff);
  command.set(prm::QueuePair::kUdpSourcePort, route.udp_source_port);
}

}  // namespace

uint64_t klms_of(uint64_t bytes) {
  return (bytes + kKlmBytesMax - 1) / kKlmBytesMax;
}

prm::Command create_key(const KeyPlan& plan) {
  using prm::Key;
  // Empty entries fill the list up.
  const uint64_t entries = (klms_of(plan.bytes) + 3) / 4 * 4;
  prm::Command command(prm::kCreateKey, (Key::kKlm + entries * Key::kKlmBits) / 8);
  // Bits for relaxed ordering stay 0: a signal must not overtake puts on the way to memory.
  command.set(Key::kAtomic, 1);
  command.set(Key::kRemoteWrite, 1);
  command.set(Key::kLocalWrite, 1);
  command.set(Key::kLocalRead, 1);
  command.set(Key::kMode, Key::kKlms);
  command.set(Key::kQueuePair, Key::kAnyQueuePair);
  command.set(Key::kLowByte, plan.low_byte);
  command.set(Key::kDomain, plan.domain);
  command.set(Key::kBytes, plan.bytes);
  command.set(Key::kOctwords, entries);
  command.set(Key::kOctwordsSent, entries);
  for (uint64_t entry = 0; entry < klms_of(plan.bytes); ++entry) {
    const auto base = static_cast<uint32_t>(Key::kKlm + entry * Key::kKlmBits);
    const uint64_t begin = entry * kKlmBytesMax;
    command.set(Key::kKlmBytes.in(base), std::min(kKlmBytesMax, plan.bytes - begin));
    command.set(Key::kKlmKey.in(base), plan.memory.key);
    command.set(Key::kKlmAddress.in(base), plan.address + begin);
  }
  return command;
}

prm::Command create_completion_queue(const QueuePlan& plan) {
  using prm::CompletionQueue;
  prm::Command command(prm::kCreateCompletionQueue, CompletionQueue::kCommandBytes);
  command.set(CompletionQueue::kRecordGiven, 1);
  // Each completion overwrites the first entry, and nobody says that it was read.
  command.set(CompletionQueue::kCollapsed, 1);
  command.set(CompletionQueue::kOverrunIgnored, 1);
  command.set(CompletionQueue::kRecordMemory, plan.memory);
  command.set(CompletionQueue::kLogEntries, plan.log_slots);
  command.set(CompletionQueue::kRegisters, plan.registers);
  command.set(CompletionQueue::kEventQueue, plan.event_queue);
  command.set(CompletionQueue::kRecordOffset, plan.completion_record);
  command.set(CompletionQueue::kMemoryOffset, plan.completions);
  command.set(CompletionQueue::kMemory, plan.memory);
  command.set(CompletionQueue::kMemoryGiven, 1);
  return command;
}

prm::Command create_queue_pair(const QueuePlan& plan, uint32_t completion_queue) {
  using prm::QueuePair;
  prm::Command command(prm::kCreateQueuePair, QueuePair::kCommandBytes);
  command.set(QueuePair::kMigration, QueuePair::kMigrated);
  command.set(QueuePair::kDomain, plan.domain);
  command.set(QueuePair::kLogSends, plan.log_slots);
  command.set(QueuePair::kRegisters, plan.registers);
  command.set(QueuePair::kSendCompletions, completion_queue);
  command.set(QueuePair::kReceiveCompletions, completion_queue);
  command.set(QueuePair::kReceiveQueue, QueuePair::kNoReceiveQueue);
  command.set(QueuePair::kRecordOffset, plan.pair_record);
  command.set(QueuePair::kRecordGiven, 1);
  command.set(QueuePair::kRecordMemory, plan.memory);
  command.set(QueuePair::kMemoryOffset, plan.blocks);
  command.set(QueuePair::kMemory, plan.memory);
  command.set(QueuePair::kMemoryGiven, 1);
  return command;
}

prm::Command to_init(uint32_t queue_pair, const PathPlan& path) {
  using prm::QueuePair;
  prm::Command command = of_queue_pair(prm::kResetToInit, queue_pair);
  command.set(QueuePair::kMigration, QueuePair::kMigrated);
  command.set(QueuePair::kRemoteWrite, 1);
  command.set(QueuePair::kRemoteAtomic, 1);
  command.set(QueuePair::kAtomicMode, QueuePair::kUpToEightBytes);
  command.set(QueuePair::kPort, path.port);
  command.set(QueuePair::kPkeyIndex, path.pkey_index);
  return command;
}

prm::Command to_receive(uint32_t queue_pair, const PathPlan& path, const PeerPlan& peer) {
  using prm::QueuePair;
  prm::Command command = of_queue_pair(prm::kInitToReceive, queue_pair);
  command.set(QueuePair::kMtu, path.mtu);
  command.set(QueuePair::kLogMessageMax, kLogMessageMax);
  command.set(QueuePair::kPeer, peer.queue_pair);
  command.set(QueuePair::kRemoteWrite, 1);
  command.set(QueuePair::kRemoteAtomic, 1);
  command.set(QueuePair::kAtomicMode, QueuePair::kUpToEightBytes);
  command.set(QueuePair::kLogReadsServed, path.log_reads_served);
  command.set(QueuePair::kNotReadyDelay, kNotReadyDelay);
  command.set(QueuePair::kPort, path.port);
  command.set(QueuePair::kPkeyIndex, path.pkey_index);
  if (path.ethernet) {
    set_route(command, peer.route);
    command.set(QueuePair::kEthernetPriority, path.service_level);
    command.set(QueuePair::kDscp, path.traffic_class >> 2);
  } else {
    command.set(QueuePair::kPeerLid, peer.lid);
    command.set(QueuePair::kServiceLevel, path.service_level);
    command.set(QueuePair::kTrafficClass, path.traffic_class);
    if (!peer.is_global) return command;
    command.set(QueuePair::kGlobal, 1);
  }
  command.set(QueuePair::kGidIndex, path.gid_index);
  command.set(QueuePair::kHopLimit, kHopLimit);
  for (uint32_t byte = 0; byte < peer.gid.size(); ++byte)
    command.set({QueuePair::kPeerGid + 8 * byte, 8}, peer.gid[byte]);
  return command;
}

prm::Command to_send(uint32_t queue_pair, const PathPlan& path) {
  using prm::QueuePair;
  prm::Command command = of_queue_pair(prm::kReceiveToSend, queue_pair);
  command.set(QueuePair::kMigration, QueuePair::kMigrated);
  command.set(QueuePair::kLogAckEvery, kLogAckEvery);
  command.set(QueuePair::kLogReadsAsked, path.log_reads_asked);
  command.set(QueuePair::kRetries, path.retries);
  command.set(QueuePair::kNotReadyRetries, kNotReadyRetries);
  command.set(QueuePair::kAckTimeout, path.ack_timeout);
  return command;
}

prm::Command to_error(uint32_t queue_pair) {
  prm::Command command(prm::kToError, prm::kAnswerBytes);
  command.set(prm::kQueuePair, queue_pair);
  return command;
}

}  // namespace tokenyard::ibgda
