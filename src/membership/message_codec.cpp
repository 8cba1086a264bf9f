#include "membership/message_codec.hpp"

#include <fmt/format.h>

#include "base/byte_stream.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::membership {

namespace {

constexpr size_t kSlotBytes = 4, kMemberBytes = 12;
constexpr size_t kGroupBytes = 8 + 4 + 8 + 8 + 8 + 1;      // minimum, without slots
constexpr size_t kReportedBytes = 8 + 8 + 4 + kSlotBytes;  // minimum, with one slot

/// The ranks reported in one operation. A rank may have to report all others in each group.
struct ReportedIn {
  GroupId group = 0;
  Sequence sequence = 0;
  std::vector<Slot> slots = {};  ///< never empty
};

constexpr auto kItself = [](const auto& element) { return element; };
constexpr auto kSlot = [](auto& stream, auto& slot) {
  stream(slot);
  stream.require(slot < kSlotsMax);
};
constexpr auto kAny = [](auto& stream, auto& element) { stream(element); };

/// Elements ascend by `key` without duplicates.
void visit_ascending(auto& stream, auto& elements, size_t element_bytes, auto key, auto each) {
  stream.list(elements, element_bytes, each);
  for (size_t i = 1; i < elements.size(); ++i)
    stream.require(key(elements[i - 1]) < key(elements[i]));
}
void visit_slots(auto& stream, auto& slots) {
  visit_ascending(stream, slots, kSlotBytes, kItself, kSlot);
}
/// Members, of which two may have the same slot: newcomers compete.
void visit_newcomers(auto& stream, auto& members) {
  visit_ascending(stream, members, kMemberBytes, kItself, kAny);
}
void visit_groups(auto& stream, auto& groups) {
  const auto number = [](const GroupProgress& group) { return group.group; };
  visit_ascending(stream, groups, kGroupBytes, number, kAny);
}
void visit_accepted(auto& stream, auto& in, auto& accepted) {
  visit_optional(stream, in, kAny, kAny);
  if (in) stream(accepted);
}

}  // namespace

void visit(auto& stream, MaybeConst<Member> auto& member) {
  kSlot(stream, member.slot);
  stream(member.incarnation);
}
void visit(auto& stream, MaybeConst<Ballot> auto& ballot) {
  stream(ballot.round);
  kSlot(stream, ballot.leader);
}
void visit(auto& stream, MaybeConst<GroupProgress> auto& group) {
  stream(group.group);
  visit_slots(stream, group.slots);
  stream(group.committed, group.begun, group.label);
  auto stage = static_cast<uint8_t>(group.stage);
  stream(stage);
  stream.require(stage <= static_cast<uint8_t>(GroupStage::closed));
  if constexpr (std::remove_reference_t<decltype(stream)>::kReads)
    group.stage = static_cast<GroupStage>(stage);
}
void visit(auto& stream, MaybeConst<View> auto& view) {
  stream(view.epoch, view.slots);
  stream.require(view.slots <= kSlotsMax);
  const auto slot = [](const Member& member) { return member.slot; };
  visit_ascending(stream, view.members, kMemberBytes, slot, kAny);
  stream.require(view.members.empty() || view.members.back().slot < view.slots);
}
void visit(auto& stream, MaybeConst<Verdict> auto& verdict) {
  stream(verdict.next);
  visit_groups(stream, verdict.groups);
  visit_slots(stream, verdict.lost);
  visit_slots(stream, verdict.left);
  visit_slots(stream, verdict.stalled);
  visit_slots(stream, verdict.excused);
  stream(verdict.recovers);
}
void visit(auto& stream, MaybeConst<WitnessRegister> auto& memory) {
  stream(memory.epoch, memory.acceptor.promised);
  visit_accepted(stream, memory.acceptor.accepted_in, memory.acceptor.accepted);
}

namespace {

void visit_operations(auto& stream, auto& operations) {
  const auto each = [](auto& list, auto& reported) {
    list(reported.group, reported.sequence);
    visit_slots(list, reported.slots);
    list.require(!reported.slots.empty());
  };
  const auto operation = [](const ReportedIn& reported) {
    return std::pair(reported.group, reported.sequence);
  };
  visit_ascending(stream, operations, kReportedBytes, operation, each);
}
void visit_timeout_reports(ByteWriter& to, const std::vector<TimeoutReport>& timeout_reports) {
  std::vector<ReportedIn> operations;
  for (const auto& [slot, group, sequence] : timeout_reports) {
    const bool same = !operations.empty() && operations.back().group == group &&
                      operations.back().sequence == sequence;
    if (!same) operations.push_back({group, sequence});
    operations.back().slots.push_back(slot);
  }
  visit_operations(to, operations);
}
void visit_timeout_reports(ByteReader& from, std::vector<TimeoutReport>& timeout_reports) {
  std::vector<ReportedIn> operations;
  visit_operations(from, operations);
  for (const ReportedIn& reported : operations) {
    for (const Slot slot : reported.slots)
      timeout_reports.push_back({slot, reported.group, reported.sequence});
  }
}

}  // namespace

void visit(auto& stream, MaybeConst<Heartbeat> auto& body) {
  visit_newcomers(stream, body.waiting);
  visit_slots(stream, body.suspected);
  stream(body.wants_change, body.recovers, body.drains);
}
void visit(auto&, MaybeConst<JoinRequest> auto&) {}
void visit(auto& stream, MaybeConst<NotYet> auto& body) {
  stream(body.view);
}
void visit(auto& stream, MaybeConst<Prepare> auto& body) {
  stream(body.ballot);
}
void visit(auto& stream, MaybeConst<Promise> auto& body) {
  stream(body.ballot);
  visit_accepted(stream, body.accepted_in, body.accepted);
  visit_groups(stream, body.progress);
  visit_slots(stream, body.suspected);
  visit_timeout_reports(stream, body.timeout_reports);
  visit_slots(stream, body.admits);
  visit_newcomers(stream, body.evicts);
  visit_newcomers(stream, body.waiting);
  stream(body.recovers);
}
void visit(auto& stream, MaybeConst<Accept> auto& body) {
  stream(body.ballot, body.verdict);
}
void visit(auto& stream, MaybeConst<Accepted> auto& body) {
  stream(body.ballot);
}
void visit(auto& stream, MaybeConst<Refused> auto& body) {
  stream(body.ballot, body.promised);
}
void visit(auto& stream, MaybeConst<Decide> auto& body) {
  stream(body.verdict);
}
void visit(auto& stream, MaybeConst<Goodbye> auto& body) {
  visit_groups(stream, body.progress);
}
void visit(auto& stream, MaybeConst<FencedOff> auto& body) {
  stream(body.now);
}

namespace {

using Body = decltype(Message::body);

/// A message's kind is its index among the alternatives.
template <size_t kind = 0>
void read_body(ByteReader& from, uint8_t which, Body& body) {
  if constexpr (kind < std::variant_size_v<Body>) {
    if (which != kind) return read_body<kind + 1>(from, which, body);
    from(body.template emplace<kind>());
  } else {
    from.require(false);
  }
}

}  // namespace

void visit(ByteWriter& to, const Message& message) {
  to(static_cast<uint8_t>(message.body.index()), message.epoch);
  std::visit(to, message.body);
}
void visit(ByteReader& from, Message& message) {
  uint8_t kind;
  from(kind, message.epoch);
  read_body(from, kind, message.body);
}

namespace {

std::vector<std::byte> bounded(const auto& value) {
  std::vector<std::byte> bytes = to_bytes(value);
  if (bytes.size() > kMessageBytesMax)
    throw InvalidArgument("membership message", fmt::format("at most {} bytes", kMessageBytesMax),
                          fmt::format("{} bytes: too many ranks in too many groups", bytes.size()));
  return bytes;
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  return bounded(message);
}

std::optional<Message> decode_message(std::span<const std::byte> bytes) {
  if (bytes.size() > kMessageBytesMax) return std::nullopt;
  return from_bytes<Message>(bytes);
}

std::vector<std::byte> encode(const Verdict& verdict) {
  return bounded(verdict);
}

std::optional<Verdict> decode_verdict(std::span<const std::byte> bytes) {
  return from_bytes<Verdict>(bytes);
}

std::vector<std::byte> encode(const WitnessRegister& memory) {
  return bounded(memory);
}

std::optional<WitnessRegister> decode_witness(std::span<const std::byte> bytes) {
  return from_bytes<WitnessRegister>(bytes);
}

}  // namespace tokenyard::membership
