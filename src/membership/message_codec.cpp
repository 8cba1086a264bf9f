#include "membership/message_codec.hpp"

#include <fmt/format.h>

#include "membership/byte_stream.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::membership {
namespace {

constexpr size_t kSlotBytes = 4, kMemberBytes = 12;
constexpr size_t kGroupBytes = 8 + 4 + 8 + 8 + 8 + 1;      // minimum, without slots
constexpr size_t kReportedBytes = 8 + 8 + 4 + kSlotBytes;  // minimum, with one slot

void write(ByteWriter& to, Slot slot) {
  to.number(slot);
}
void write(ByteWriter& to, const Member& member) {
  to.number(member.slot);
  to.number(member.incarnation);
}
void write(ByteWriter& to, const Ballot& ballot) {
  to.number(ballot.round);
  to.number(ballot.leader);
}
void write(ByteWriter& to, const GroupProgress& group);
template <class Element>
void write(ByteWriter& to, const std::vector<Element>& elements) {
  to.list(elements, [](ByteWriter& list, const Element& element) { write(list, element); });
}
void write(ByteWriter& to, const GroupProgress& group) {
  to.number(group.group);
  write(to, group.slots);
  to.number(group.committed);
  to.number(group.begun);
  to.number(group.label);
  to.number(static_cast<uint8_t>(group.stage));
}
/// The ranks reported in one operation. A rank may have to report all others in each group.
struct ReportedIn {
  GroupId group = 0;
  Sequence sequence = 0;
  std::vector<Slot> slots = {};  ///< never empty
};
void write(ByteWriter& to, const ReportedIn& reported) {
  to.number(reported.group);
  to.number(reported.sequence);
  write(to, reported.slots);
}
void write_timeout_reports(ByteWriter& to, const std::vector<TimeoutReport>& timeout_reports) {
  std::vector<ReportedIn> operations;
  for (const auto& [slot, group, sequence] : timeout_reports) {
    const bool same = !operations.empty() && operations.back().group == group &&
                      operations.back().sequence == sequence;
    if (!same) operations.push_back({group, sequence});
    operations.back().slots.push_back(slot);
  }
  write(to, operations);
}
void write(ByteWriter& to, const View& view) {
  to.number(view.epoch);
  to.number(view.slots);
  write(to, view.members);
}
void write(ByteWriter& to, const Verdict& verdict) {
  write(to, verdict.next);
  write(to, verdict.groups);
  write(to, verdict.lost);
  write(to, verdict.left);
  write(to, verdict.stalled);
  write(to, verdict.excused);
  to.flag(verdict.recovers);
}
void write(ByteWriter& to, const std::optional<Ballot>& in, const Verdict& accepted) {
  to.flag(in.has_value());
  if (!in) return;
  write(to, *in);
  write(to, accepted);
}

Slot read_slot(ByteReader& from) {
  const auto slot = from.number<Slot>();
  from.require(slot < kSlotsMax);
  return slot;
}
Member read_member(ByteReader& from) {
  const Slot slot = read_slot(from);
  return {slot, from.number<uint64_t>()};
}
Ballot read_ballot(ByteReader& from) {
  const auto round = from.number<uint64_t>();
  return {round, read_slot(from)};
}
/// Requires that elements ascend by `key` without duplicates.
template <class Element, class Key>
void require_ascending(ByteReader& from, const std::vector<Element>& elements, Key key) {
  for (size_t i = 1; i < elements.size(); ++i)
    from.require(key(elements[i - 1]) < key(elements[i]));
}
std::vector<Slot> read_slots(ByteReader& from) {
  std::vector<Slot> slots = from.list(kSlotBytes, read_slot);
  require_ascending(from, slots, [](Slot slot) { return slot; });
  return slots;
}
/// Reads members, of which two may have the same slot: newcomers compete.
std::vector<Member> read_newcomers(ByteReader& from) {
  std::vector<Member> members = from.list(kMemberBytes, read_member);
  require_ascending(from, members, [](const Member& member) { return member; });
  return members;
}
ReportedIn read_reported(ByteReader& from) {
  ReportedIn reported;
  reported.group = from.number<GroupId>();
  reported.sequence = from.number<Sequence>();
  reported.slots = read_slots(from);
  from.require(!reported.slots.empty());
  return reported;
}
std::vector<TimeoutReport> read_timeout_reports(ByteReader& from) {
  const std::vector<ReportedIn> operations = from.list(kReportedBytes, read_reported);
  require_ascending(from, operations, [](const ReportedIn& reported) {
    return std::pair(reported.group, reported.sequence);
  });
  std::vector<TimeoutReport> timeout_reports;
  for (const ReportedIn& reported : operations) {
    for (const Slot slot : reported.slots)
      timeout_reports.push_back({slot, reported.group, reported.sequence});
  }
  return timeout_reports;
}
GroupProgress read_group(ByteReader& from) {
  GroupProgress group;
  group.group = from.number<GroupId>();
  group.slots = read_slots(from);
  group.committed = from.number<Sequence>();
  group.begun = from.number<Sequence>();
  group.label = from.number<uint64_t>();
  const auto stage = from.number<uint8_t>();
  from.require(stage <= static_cast<uint8_t>(GroupStage::closed));
  group.stage = static_cast<GroupStage>(stage);
  return group;
}
std::vector<GroupProgress> read_groups(ByteReader& from) {
  std::vector<GroupProgress> groups = from.list(kGroupBytes, read_group);
  require_ascending(from, groups, [](const GroupProgress& group) { return group.group; });
  return groups;
}
View read_view(ByteReader& from) {
  View view;
  view.epoch = from.number<Epoch>();
  view.slots = from.number<uint32_t>();
  from.require(view.slots <= kSlotsMax);
  view.members = from.list(kMemberBytes, read_member);
  const auto slot = [](const Member& member) { return member.slot; };
  require_ascending(from, view.members, slot);
  from.require(view.members.empty() || view.members.back().slot < view.slots);
  return view;
}
Verdict read_verdict(ByteReader& from) {
  Verdict verdict;
  verdict.next = read_view(from);
  verdict.groups = read_groups(from);
  verdict.lost = read_slots(from);
  verdict.left = read_slots(from);
  verdict.stalled = read_slots(from);
  verdict.excused = read_slots(from);
  verdict.recovers = from.flag();
  return verdict;
}
void read(ByteReader& from, std::optional<Ballot>& in, Verdict& accepted) {
  if (!from.flag()) return;
  in = read_ballot(from);
  accepted = read_verdict(from);
}

// ---- one pair per kind of message --------------------------------------------------------------

void write_body(ByteWriter& to, const Heartbeat& body) {
  write(to, body.waiting);
  write(to, body.suspected);
  to.flag(body.wants_change);
  to.flag(body.recovers);
  to.flag(body.drains);
}
void read_body(ByteReader& from, Heartbeat& body) {
  body.waiting = read_newcomers(from);
  body.suspected = read_slots(from);
  body.wants_change = from.flag();
  body.recovers = from.flag();
  body.drains = from.flag();
}
void write_body(ByteWriter&, const JoinRequest&) {}
void read_body(ByteReader&, JoinRequest&) {}
void write_body(ByteWriter& to, const NotYet& body) {
  write(to, body.view);
}
void read_body(ByteReader& from, NotYet& body) {
  body.view = read_view(from);
}
void write_body(ByteWriter& to, const Prepare& body) {
  write(to, body.ballot);
}
void read_body(ByteReader& from, Prepare& body) {
  body.ballot = read_ballot(from);
}
void write_body(ByteWriter& to, const Promise& body) {
  write(to, body.ballot);
  write(to, body.accepted_in, body.accepted);
  write(to, body.progress);
  write(to, body.suspected);
  write_timeout_reports(to, body.timeout_reports);
  write(to, body.admits);
  write(to, body.evicts);
  write(to, body.waiting);
  to.flag(body.recovers);
}
void read_body(ByteReader& from, Promise& body) {
  body.ballot = read_ballot(from);
  read(from, body.accepted_in, body.accepted);
  body.progress = read_groups(from);
  body.suspected = read_slots(from);
  body.timeout_reports = read_timeout_reports(from);
  body.admits = read_slots(from);
  body.evicts = read_newcomers(from);
  body.waiting = read_newcomers(from);
  body.recovers = from.flag();
}
void write_body(ByteWriter& to, const Accept& body) {
  write(to, body.ballot);
  write(to, body.verdict);
}
void read_body(ByteReader& from, Accept& body) {
  body.ballot = read_ballot(from);
  body.verdict = read_verdict(from);
}
void write_body(ByteWriter& to, const Accepted& body) {
  write(to, body.ballot);
}
void read_body(ByteReader& from, Accepted& body) {
  body.ballot = read_ballot(from);
}
void write_body(ByteWriter& to, const Refused& body) {
  write(to, body.ballot);
  write(to, body.promised);
}
void read_body(ByteReader& from, Refused& body) {
  body.ballot = read_ballot(from);
  body.promised = read_ballot(from);
}
void write_body(ByteWriter& to, const Decide& body) {
  write(to, body.verdict);
}
void read_body(ByteReader& from, Decide& body) {
  body.verdict = read_verdict(from);
}
void write_body(ByteWriter& to, const Goodbye& body) {
  write(to, body.progress);
}
void read_body(ByteReader& from, Goodbye& body) {
  body.progress = read_groups(from);
}
void write_body(ByteWriter& to, const FencedOff& body) {
  to.number(body.now);
}
void read_body(ByteReader& from, FencedOff& body) {
  body.now = from.number<Epoch>();
}

using Body = decltype(Message::body);

/// A message's kind is its index among the alternatives.
template <size_t kind = 0>
void read_body(ByteReader& from, uint8_t which, Body& body) {
  if constexpr (kind < std::variant_size_v<Body>) {
    if (which != kind) return read_body<kind + 1>(from, which, body);
    read_body(from, body.template emplace<kind>());
  } else {
    from.require(false);
  }
}

std::vector<std::byte> bounded(ByteWriter& writer) {
  if (writer.size() > kMessageBytesMax)
    throw InvalidArgument(
        "membership message", fmt::format("at most {} bytes", kMessageBytesMax),
        fmt::format("{} bytes: too many ranks in too many groups", writer.size()));
  return writer.take();
}

template <class Value>
std::optional<Value> whole(ByteReader& reader, Value value) {
  if (!reader.finished()) return std::nullopt;
  return value;
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  ByteWriter writer;
  writer.number(static_cast<uint8_t>(message.body.index()));
  writer.number(message.epoch);
  std::visit([&](const auto& body) { write_body(writer, body); }, message.body);
  return bounded(writer);
}

std::optional<Message> decode_message(std::span<const std::byte> bytes) {
  if (bytes.size() > kMessageBytesMax) return std::nullopt;
  ByteReader reader(bytes);
  Message message;
  const auto kind = reader.number<uint8_t>();
  message.epoch = reader.number<Epoch>();
  read_body(reader, kind, message.body);
  return whole(reader, std::move(message));
}

std::vector<std::byte> encode(const Verdict& verdict) {
  ByteWriter writer;
  write(writer, verdict);
  return bounded(writer);
}

std::optional<Verdict> decode_verdict(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Verdict verdict = read_verdict(reader);
  return whole(reader, std::move(verdict));
}

std::vector<std::byte> encode(const WitnessRegister& memory) {
  ByteWriter writer;
  writer.number(memory.epoch);
  write(writer, memory.acceptor.promised);
  write(writer, memory.acceptor.accepted_in, memory.acceptor.accepted);
  return bounded(writer);
}

std::optional<WitnessRegister> decode_witness(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  WitnessRegister memory;
  memory.epoch = reader.number<Epoch>();
  memory.acceptor.promised = read_ballot(reader);
  read(reader, memory.acceptor.accepted_in, memory.acceptor.accepted);
  return whole(reader, std::move(memory));
}

}  // namespace tokenyard::membership
