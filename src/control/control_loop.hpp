/// The control thread: feeds messages, evidence and time to the membership state machine, and
/// carries out its effects.
///
/// Invariant: before a process mentions another process on a link, it has sent that one's endpoint
/// on the link. Each process passes an endpoint that is new to it to all its links, and sends all
/// endpoints on a new link; links keep their order. So a process that installs a view has the
/// contact of each of its members, and a newcomer needs to know only one member.
#pragma once

#include <fmt/format.h>

#include <asio.hpp>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/log.hpp"
#include "control/exchange.hpp"
#include "control/links.hpp"
#include "control/options.hpp"
#include "control/participant.hpp"
#include "control/participant_thread.hpp"
#include "control/status_board.hpp"
#include "control/witness_client.hpp"
#include "membership/membership.hpp"

namespace tokenyard::control {

class ControlLoop final : private LinkListener {
 public:
  /// `own`: the endpoint of this process, without the port. `inbox` takes the messages of other
  /// ranks; null: there are none. Listens at once.
  ControlLoop(asio::io_context& io, const ControlOptions& options, ControlEndpoint own,
              const Log& log, StatusBoard& status_board, Inbox* inbox);

  const ControlEndpoint& own_endpoint() const { return own_; }

  // On the control thread only, from here on.

  void open(Participant& participant, Contact contact, net::Purpose purpose);
  /// Dials these processes, which are known by their endpoints only.
  void meet(const std::map<Member, ControlEndpoint>& endpoints);
  /// Begins epoch 1 as a founder. `endpoints` come from the store: others may have linked with one
  /// another before this process heard of them.
  void begin(const View& first, const std::map<Member, ControlEndpoint>& endpoints);
  /// Uses the witness whose register is stored under `key`.
  void set_witness(std::shared_ptr<Store> store, const std::string& key);
  /// Sends a message of this rank.
  void send(Slot to, Bytes message);
  void report_timeout(const TimeoutReport& timeout_report, Epoch seen_in);
  void admit(const std::vector<Slot>& slots, Epoch seen_in);
  void withdraw(const std::vector<Slot>& slots);
  void evict(const Member& member);
  void recover(bool wanted);
  void abandon(const Member& member, Epoch seen_in);
  void drain();
  void leave();
  void hang_up();
  /// Ends the membership of this process, which cannot go on after an error of its own.
  void fail(const std::string& why);

  /// Waits until the participant has been told everything. Only after the control thread has ended.
  void join_participant() { participant_.join(); }

 private:
  /// Limit of members and newcomers together, over the whole life of the job.
  static constexpr size_t kEndpointsMax = 65536;

  std::optional<Epoch> fenced_since(const net::Introduction& who) const override;
  void linked(const Member& peer, net::Purpose purpose) override;
  void received(const Member& peer, Topic topic, std::span<const std::byte> bytes) override;
  void lost(const Member& peer, const std::string& why) override;
  void ended(const Member& peer) override;
  void unreachable(const Member& peer, const std::string& why) override;
  void refused(const Member& by, Epoch since) override;
  void turned_away(const std::string& who, const std::string& why) override;

  void learn(const Member& from, const ControlEndpoint& endpoint);
  void on_message(const Member& from, const membership::Message& message);
  void become(const View& view);
  void pump();
  void carry_out(const membership::Effect& effect);
  void freeze(Epoch epoch);
  void install(const Verdict& verdict);
  void part_from_former_members(const Verdict& verdict);
  void choose_whom_to_dial();
  void forget_former_members(const View& next);
  void be_over(Epoch epoch, const std::string& why);
  void arm();
  void say(const Member& to, const membership::Message& message);
  void publish_view(const Member& newcomer);
  template <class... Facts>
  void log(LogLevel level, fmt::format_string<Facts...> text, Facts&&... facts) const;
  /// Writes what an agreement has changed.
  void log_verdict(const Verdict& verdict);
  void log_quorum(const membership::QuorumMissing& missing);
  void log_newcomers();
  /// Notes that this thread runs, and since when without a pause.
  void wake();
  void note_heartbeat(const Member& from);
  bool is_member(const Member& peer) const {
    return membership_ && membership_->view().contains(peer);
  }
  bool working() const { return membership_ && !over_; }
  Instant now() const;

  asio::io_context& io_;
  const ControlOptions options_;
  ControlEndpoint own_;
  const Log& log_;
  StatusBoard& status_board_;
  ParticipantThread participant_;
  bool newcomer_ = false;
  bool leaving_ = false;
  bool over_ = false;
  const std::chrono::steady_clock::time_point start_;
  asio::steady_timer timer_;
  Links links_;
  std::optional<Exchange> exchange_;
  std::map<Member, ControlEndpoint> endpoints_;  ///< of other processes
  std::map<Member, ControlEndpoint> acquaint_;   ///< processes to dial until there is a view
  std::optional<membership::Membership> membership_;
  View installed_;
  std::map<Member, Instant> heard_;  ///< last heartbeat of each member
  std::set<Member> leavers_;         ///< members that have said goodbye
  Instant ran_{}, runs_since_{};     ///< of this thread
  std::unique_ptr<WitnessClient> witness_;
};

}  // namespace tokenyard::control
