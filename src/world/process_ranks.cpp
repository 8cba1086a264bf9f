#include "world/process_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "control/host_secret.hpp"
#include "control/shared_register.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/fd_exchange.hpp"
#include "net/payload.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

constexpr size_t kJobMax = 256;

void check(const Rendezvous& where) {
  if (where.size == 0) throw InvalidArgument("size", "at least 1", "0");
  if (where.rank >= where.size) {
    throw InvalidArgument("rank", fmt::format("below {}", where.size),
                          fmt::format("{}", where.rank));
  }
  if (where.job.empty() || where.job.size() > kJobMax) {
    throw InvalidArgument("job", fmt::format("a name of 1 to {} bytes", kJobMax),
                          fmt::format("{} bytes", where.job.size()));
  }
  if (where.host.empty()) throw InvalidArgument("host", "a host name or an address", "nothing");
  if (where.size > 1 && where.port == 0) {
    throw InvalidArgument("port", "a port that all ranks know", "0");
  }
}

std::vector<std::byte> encode(const Message& message) {
  net::PayloadWriter payload;
  payload.number(static_cast<uint64_t>(message.kind));
  payload.number(message.generation);
  payload.number(message.sequence);
  payload.text(message.what);
  payload.text({reinterpret_cast<const char*>(message.bytes.data()), message.bytes.size()});
  return payload.take();
}

/// Returns nothing if the bytes are no message.
std::optional<Message> decode(std::span<const std::byte> bytes) {
  net::PayloadReader payload(bytes);
  const uint64_t kind = payload.number();
  Message message;
  message.generation = static_cast<uint32_t>(payload.number());
  message.sequence = payload.number();
  message.what = payload.text();
  const std::string content = payload.text();
  if (!payload.ok() || !payload.at_end()) return std::nullopt;
  if (kind > static_cast<uint64_t>(MessageKind::rebuild)) return std::nullopt;
  message.kind = static_cast<MessageKind>(kind);
  const auto* begin = reinterpret_cast<const std::byte*>(content.data());
  message.bytes.assign(begin, begin + content.size());
  return message;
}

}  // namespace

std::shared_ptr<ProcessRanks> ProcessRanks::connect(const Rendezvous& where,
                                                    const WorldOptions& options) {
  check(where);
  std::shared_ptr<ProcessRanks> ranks(new ProcessRanks(where));
  if (where.size > 1) ranks->meet(options);
  return ranks;
}

void ProcessRanks::meet(const WorldOptions& world) {
  const bool is_ipv6 = where_.host.find(':') != std::string::npos;
  const std::string place =
      fmt::format("{}:{}", is_ipv6 ? "[" + where_.host + "]" : where_.host, where_.port);
  control::ControlOptions options;
  options.store = "tcp://" + place;
  options.host_store = options.sole_host = where_.rank == 0;
  options.job = where_.job;
  options.secret = where_.secret.empty() ? control::host_secret() : where_.secret;
  options.slot = where_.rank;
  options.slots = options.slots_max = where_.size;
  options.timeout =
      world.rendezvous_timeout.count() != 0 ? world.rendezvous_timeout : world.timeout;
  options.farewell = kGoodbyeMax;
  options.membership.heartbeat = kHeartbeat;
  options.membership.witness = true;
  options.witness_in_store = false;
  options.interrupt = world.interrupt;
  const auto start = Clock::now();
  control::Inbox* const inbox = this;
  control_ = std::make_unique<control::Control>(std::move(options), inbox);
  try {
    control_->found(*this, {});
  } catch (const OsError& error) {
    if (where_.rank == 0) throw;
    const std::chrono::duration<double> waited = Clock::now() - start;
    throw PeerTimeout(
        {.rank = 0,
         .phase = fmt::format("rendezvous: connect to rank 0 at {} ({})", place, error.what()),
         .expected = where_.size - 1,
         .seen = 0,
         .waited_s = waited.count()});
  }
  control_->await_links();
}

ProcessRanks::~ProcessRanks() {
  if (control_) control_->stop();
}

void ProcessRanks::share_witness(Bootstrap& bootstrap, TimePoint until) {
  if (!control_) return;
  FileDescriptor own;
  collective_step(bootstrap, "membership: memory", until,
                  [&] { own = control::SharedRegister::make(slots()); });
  const auto memories = exchange_fds(bootstrap, own.native(), "membership: register", until);
  collective_step(bootstrap, "membership: witness", until, [&] {
    control_->use_witness(
        std::make_shared<control::SharedRegister>(memories.front(), slot(), slots()));
  });
}

void ProcessRanks::close_store() {
  if (control_) control_->close_store();
}

control::View ProcessRanks::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

control::Epoch ProcessRanks::epoch() const {
  const std::lock_guard lock(mutex_);
  return view_.epoch;
}

std::vector<uint32_t> ProcessRanks::evict(std::span<const uint32_t> slots, control::Epoch since,
                                          Accelerator& accelerator, TimePoint until,
                                          const std::function<void()>& check) {
  const TimePoint start = accelerator.now();
  std::vector<uint32_t> present, excused;
  control::Epoch asked_in = 0;
  TimePoint ask_again{};
  const auto all_are_out = [&] {
    check();
    const control::View members = view();
    present.clear();
    excused.clear();
    for (const uint32_t slot : slots) {
      if (const auto member = members.at(slot))
        (is_excused(*member, since) ? excused : present).push_back(slot);
    }
    if (present.empty()) return true;
    const TimePoint now = accelerator.now();
    if (members.epoch != asked_in || now >= ask_again) {
      for (const uint32_t slot : present) control_->abandon(*members.at(slot));
      asked_in = members.epoch;
      ask_again = now + kAskAgain;
    }
    return false;
  };
  if (all_are_out() || accelerator.wait_until(until, all_are_out)) return excused;
  const std::lock_guard lock(mutex_);
  if (shortage_) throw QuorumLost(shortage_->answering, shortage_->needed);
  const std::chrono::duration<double> waited = accelerator.now() - start;
  throw PeerTimeout({.rank = present.front(),
                     .phase = "rebuild: agree to go on without it",
                     .expected = slots.size(),
                     .seen = slots.size() - present.size(),
                     .waited_s = waited.count()});
}

void ProcessRanks::leave() {
  throw Unsupported("leave", "a process says goodbye only when its mesh is destroyed");
}

void ProcessRanks::send(uint32_t to, const Message& message) {
  if (message.bytes.size() > kBytesMax || message.what.size() > kWhatMax) {
    throw InvalidArgument("bytes", fmt::format("at most {} per rank", kBytesMax),
                          fmt::format("{}", message.bytes.size()));
  }
  ++unsent_;
  // The control plane lets go of a message once the system has it, or its peer is gone.
  const auto left = [this](const std::vector<std::byte>* bytes) {
    delete bytes;
    --unsent_;
  };
  control_->send(to, control::Bytes(new std::vector<std::byte>(encode(message)), left));
}

bool ProcessRanks::received(control::Slot from, std::vector<std::byte> bytes) {
  std::optional<Message> message = decode(bytes);
  return message && mailbox_.put(from, std::move(*message));
}

void ProcessRanks::gone(control::Slot peer, bool said_goodbye) {
  mailbox_.mark(peer, said_goodbye ? PeerState::left : PeerState::lost);
}

void ProcessRanks::evicted() {
  mailbox_.mark(slot(), PeerState::lost);
}

/// A kernel commits nothing that others could undo.
std::vector<control::GroupProgress> ProcessRanks::freeze(control::Epoch) {
  return {};
}

void ProcessRanks::install(const control::Verdict& verdict, const control::Contacts&) {
  const std::lock_guard lock(mutex_);
  view_ = verdict.next;
  for (const control::Slot slot : verdict.excused) {
    if (const auto member = view_.at(slot)) excused_[*member] = view_.epoch;
  }
  shortage_.reset();
}

bool ProcessRanks::is_excused(const control::Member& member, control::Epoch since) const {
  const std::lock_guard lock(mutex_);
  const auto found = excused_.find(member);
  return found != excused_.end() && found->second > since;
}

void ProcessRanks::quorum_missing(const std::vector<control::Slot>& answering, uint32_t needed) {
  const std::lock_guard lock(mutex_);
  shortage_.reset();
  if (answering.size() < needed) shortage_ = Shortage{answering, needed};
}

}  // namespace tokenyard
