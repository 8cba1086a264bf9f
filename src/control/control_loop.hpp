/// What happens on the control thread: the membership is fed with messages, evidence and time, and
/// what it wants done is done.
///
/// Cards: before a process says anything about another one on a link, it has said that one's card
/// there. Everybody passes on a card that it did not know, to all its links, and gives all cards to
/// who is newly linked; links keep their order; so whoever installs a view has the contact of every
/// member of it, and a newcomer needs to know but one of them.
#pragma once

#include <asio.hpp>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>

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
  /// `own`: of this process, but for the port. Listens from now on.
  ControlLoop(asio::io_context& io, const ControlOptions& options, ControlEndpoint own,
              StatusBoard& status_board);

  const ControlEndpoint& own_endpoint() const { return own_; }
  uint64_t refused() const { return refused_; }

  // On the control thread, from here on.

  void open(Participant& participant, Contact contact, net::Purpose purpose);
  /// Looks for these processes, of which only the cards are known.
  void meet(const std::map<Member, ControlEndpoint>& endpoints);
  /// A founder begins epoch 1, and has these cards from the store: others may have been faster to
  /// link with one another.
  void begin(const View& first, const std::map<Member, ControlEndpoint>& endpoints);
  /// The witness has its memory under `key`.
  void set_witness(std::shared_ptr<Store> store, const std::string& key);
  void report_timeout(const TimeoutReport& timeout_report, Epoch seen_in);
  void admit(const std::vector<Slot>& slots, Epoch seen_in);
  void withdraw(const std::vector<Slot>& slots);
  void evict(const Member& member);
  void recover(bool wanted);
  void drain();
  void leave();
  void hang_up();
  /// Something is wrong with us: this process cannot go on as a member.
  void fail(const std::string& why);

  /// When the control thread has ended: until the participant has been told all.
  void join_participant() { participant_.join(); }

 private:
  /// Members, and newcomers that have ever come.
  static constexpr size_t kEndpointsMax = 65536;

  std::optional<Epoch> fenced_since(const net::Introduction& who) const override;
  void linked(const Member& peer, net::Purpose purpose) override;
  void received(const Member& peer, Topic topic, std::span<const std::byte> bytes) override;
  void lost(const Member& peer, const std::string& why) override;
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
  bool working() const { return membership_ && !over_; }
  Instant now() const;

  asio::io_context& io_;
  const ControlOptions options_;
  ControlEndpoint own_;
  StatusBoard& status_board_;
  ParticipantThread participant_;
  bool newcomer_ = false;
  bool leaving_ = false;
  bool over_ = false;
  std::atomic<uint64_t> refused_ = 0;
  const std::chrono::steady_clock::time_point start_;
  asio::steady_timer timer_;
  Links links_;
  std::map<Member, ControlEndpoint> endpoints_;  ///< of others
  std::map<Member, ControlEndpoint> acquaint_;   ///< whom to meet as long as there is no view
  std::optional<membership::Membership> membership_;
  View installed_;
  std::unique_ptr<WitnessClient> witness_;
};

}  // namespace tokenyard::control
