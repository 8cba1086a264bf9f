/// The connections of this process to the others of the job, one per pair. All calls come from the
/// control thread.
///
/// A wanted process is dialled until it answers, and again whenever the connection breaks. An
/// incoming connection must pass the handshake; strangers are rejected, counted and forgotten, and
/// cost a few bytes for at most kHandshakeMax.
///
/// Two processes that dial each other at once have two connections for a moment. Both ends keep the
/// one dialled by the greater Member. The other one is neither used nor closed for kFarewellMax,
/// because its end might be noticed before the kept one is up, and look like a death.
///
/// A link counts from its first frame. A dialler that gives up before it has read the reply leaves
/// a connection at the acceptor that ends with nothing on it, and dials again: nobody is lost by
/// that, and messages of the ranks that were to go that way go over the next link.
///
/// Messages of the ranks (exchange.hpp) still count on a link that this process has parted with:
/// agreements reach a process over any of its links, and must not overtake what a rank had sent.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "control/control_endpoint.hpp"
#include "control/link.hpp"
#include "net/connection.hpp"
#include "net/listener.hpp"

namespace tokenyard::control {

/// The kinds of frames on a link. The acceptor's first frame is a connect_reply or a refusal.
enum class Topic : uint16_t {
  connect_reply = 1,
  refusal,  ///< the epoch since which the dialler is no longer a member
  endpoint,
  message,
  // Of the ranks' own messages (exchange.hpp):
  part,     ///< of a message, more of which follows
  last,     ///< last part of a message
  goodbye,  ///< no message follows
};

/// Returns whether the frame belongs to a message of the ranks, not of the control plane.
inline bool is_of_ranks(Topic topic) {
  return topic == Topic::part || topic == Topic::last || topic == Topic::goodbye;
}

/// Callbacks of Links. Never called from within a call of Links.
class LinkListener {
 public:
  virtual ~LinkListener() = default;
  /// Returns the epoch since which a process that connects as a member is none, if it is none.
  virtual std::optional<Epoch> fenced_since(const net::Introduction& who) const = 0;
  virtual void linked(const Member& peer, net::Purpose purpose) = 0;
  virtual void received(const Member& peer, Topic topic, std::span<const std::byte> bytes) = 0;
  /// A link that counts has ended.
  virtual void lost(const Member& peer, const std::string& why) = 0;
  /// A link has ended on which ranks may have sent messages: no more of them follow.
  /// Called once per such link, after `lost` if both are called.
  virtual void ended(const Member& peer) = 0;
  /// A wanted process could not be reached; dialling goes on.
  virtual void unreachable(const Member& peer, const std::string& why) = 0;
  /// A member reports since when this process is no longer a member.
  virtual void refused(const Member& by, Epoch since) = 0;
  /// A connection was rejected.
  virtual void turned_away(const std::string& who, const std::string& why) = 0;
};

/// The part of Links that an Exchange needs. A simulator implements it without connections.
class RankLinks {
 public:
  virtual ~RankLinks() = default;
  virtual bool contains(const Member& peer) const = 0;
  /// Sends a message of the ranks on the link to `peer`; does nothing if there is none.
  virtual void send_in_parts(const Member& peer, Bytes message) = 0;
  /// Sends the goodbye of this rank, behind its messages.
  virtual void say_goodbye(const Member& peer) = 0;
};

class Links final : public RankLinks {
 public:
  /// Listens at `address` on any free port. Throws OsError.
  Links(asio::io_context& io, const net::Key& key, const std::string& address,
        const net::Introduction& self, std::chrono::nanoseconds silence, LinkListener& listener);

  uint16_t port() const { return incoming_.port(); }
  /// Sets what this process introduces itself as from now on.
  void introduce_as(net::Purpose purpose, Epoch epoch);
  /// Sets the processes to dial; no others are dialled.
  void want(std::map<Member, ControlEndpoint> wanted);
  /// Sends on the link to `peer`; does nothing if there is none.
  void send(const Member& peer, Topic topic, std::vector<std::byte> payload);
  void send_in_parts(const Member& peer, Bytes message) override;
  void say_goodbye(const Member& peer) override;
  /// Sends what is queued, and closes the link once it has been still for kFarewellMax.
  void hang_up(const Member& peer);
  /// Parts from a process that is going to hang up, since it leaves: sends what is queued, takes
  /// the messages of its rank to the end, and closes the link once the peer has, or once it has
  /// been still for kFarewellMax.
  void part(const Member& peer);
  /// Parts from a process that may never hang up, since it is stopped: takes what has arrived on
  /// the link and nothing after it.
  void expel(const Member& peer);
  void hang_up_on_all();
  /// Returns whether the queues of closing links are empty.
  bool idle() const;
  std::vector<Member> peers() const;
  bool contains(const Member& peer) const override { return links_.contains(peer); }

 private:
  static constexpr std::chrono::milliseconds kDialMax{1000};
  static constexpr std::chrono::milliseconds kPauseMin{10};
  static constexpr std::chrono::milliseconds kPauseMax{200};
  static constexpr std::chrono::milliseconds kFarewellMax{500};
  static constexpr int kFarewellTurns = 10;
  static constexpr uint32_t kPendingMax = 256;

  Link* at(const Member& peer) const;
  void send_in_parts(const Member& peer, Link::Bulk message);
  net::awaitable<void> greet(std::shared_ptr<net::Connection> connection, net::Pending pending);
  void dial(const Member& peer);
  net::awaitable<void> keep_dialling(Member peer);
  /// Makes one attempt: links with the process, or reports its refusal.
  net::awaitable<void> reach(const ControlEndpoint& endpoint);
  void adopt(std::shared_ptr<net::Connection> connection, net::Handshake::Side side);
  bool is_kept_over(const Link& one, const Link& another) const;
  /// Keeps reading from the link, and closes it after kFarewellMax.
  void put_aside(std::shared_ptr<Link> link);
  net::awaitable<void> listen_to(std::shared_ptr<Link> link);
  net::awaitable<void> close_later(std::shared_ptr<Link> link);
  /// Waits until nothing has moved on the link for kFarewellMax, in turns of this thread: a process
  /// that was stopped has not looked whether anything moved.
  static net::awaitable<void> until_still(std::shared_ptr<Link> link);

  asio::io_context& io_;
  const net::Key key_;
  net::Introduction self_;
  const std::chrono::nanoseconds silence_;
  LinkListener& listener_;
  net::Listener incoming_;
  std::map<Member, std::shared_ptr<Link>> links_;
  std::set<std::shared_ptr<Link>> parting_;  ///< being closed; only messages of ranks count
  std::set<std::shared_ptr<Link>> aside_;    ///< surplus; messages still count
  /// Messages of links that have ended before they were made, for the next ones.
  std::map<Member, std::deque<Link::Bulk>> unsent_;
  std::map<Member, ControlEndpoint> wanted_;
  std::set<Member> dialling_;
};

}  // namespace tokenyard::control
