/// The connections of this process to the others of the job, one a pair. Lives on the control
/// thread.
///
/// Who is wanted is dialled until it answers, and again when the connection breaks. Who comes is
/// asked to prove itself; strangers are turned away, counted and forgotten, and cost a few bytes
/// for kHandshakeMax at most.
///
/// Where two processes dial each other at once, they have two connections for a moment. Both ends
/// keep the one that the greater member has dialled. The other one is neither used nor closed for
/// kFarewellMax, since its end may be noticed before the better one has been.
#pragma once

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

/// What a link carries. The acceptor begins with a welcome, or a refusal.
enum class Topic : uint16_t {
  connect_reply = 1,
  refusal,  ///< the epoch since which the dialler is no member
  endpoint,
  message,
};

/// What links report. Never called from within a call of Links.
class LinkListener {
 public:
  virtual ~LinkListener() = default;
  /// Since when a process that comes as a member is none, if so.
  virtual std::optional<Epoch> fenced_since(const net::Introduction& who) const = 0;
  virtual void linked(const Member& peer, net::Purpose purpose) = 0;
  virtual void received(const Member& peer, Topic topic, std::span<const std::byte> bytes) = 0;
  virtual void lost(const Member& peer, const std::string& why) = 0;
  /// Tried to dial a process that is wanted; will try again.
  virtual void unreachable(const Member& peer, const std::string& why) = 0;
  /// A member says since when this process is none.
  virtual void refused(const Member& by, Epoch since) = 0;
  /// Somebody was turned away.
  virtual void turned_away(const std::string& who, const std::string& why) = 0;
};

class Links {
 public:
  /// Listens at `address`, any port. Throws OsError if it cannot.
  Links(asio::io_context& io, const net::Key& key, const std::string& address,
        const net::Introduction& self, std::chrono::nanoseconds silence, LinkListener& listener);

  uint16_t port() const { return incoming_.port(); }
  /// As what this process introduces itself from now on.
  void introduce_as(net::Purpose purpose, Epoch epoch);
  /// Dials these and no others.
  void want(std::map<Member, ControlEndpoint> wanted);
  /// To nobody if there is no link.
  void send(const Member& peer, Topic topic, std::vector<std::byte> payload);
  /// Says what is still to be said, and hangs up within kFarewellMax.
  void hang_up(const Member& peer);
  void hang_up_on_all();
  /// Whether all that was to be said has been.
  bool idle() const;
  std::vector<Member> peers() const;
  bool contains(const Member& peer) const { return links_.contains(peer); }

 private:
  static constexpr std::chrono::milliseconds kDialMax{1000};
  static constexpr std::chrono::milliseconds kPauseMin{10};
  static constexpr std::chrono::milliseconds kPauseMax{200};
  static constexpr std::chrono::milliseconds kFarewellMax{500};
  static constexpr uint32_t kPendingMax = 256;

  net::awaitable<void> greet(std::shared_ptr<net::Connection> connection, net::Pending pending);
  void dial(const Member& peer);
  net::awaitable<void> keep_dialling(Member peer);
  /// Links with it, or hears that it does not want to.
  net::awaitable<void> reach(const ControlEndpoint& endpoint);
  void adopt(std::shared_ptr<net::Connection> connection, net::Handshake::Side side);
  bool is_kept_over(const Link& one, const Link& another) const;
  /// Reads it on, and closes it after a while.
  void put_aside(std::shared_ptr<Link> link);
  net::awaitable<void> listen_to(std::shared_ptr<Link> link);
  net::awaitable<void> close_later(std::shared_ptr<Link> link);

  asio::io_context& io_;
  const net::Key key_;
  net::Introduction self_;
  const std::chrono::nanoseconds silence_;
  LinkListener& listener_;
  net::Listener incoming_;
  std::map<Member, std::shared_ptr<Link>> links_;
  std::set<std::shared_ptr<Link>> parting_;  ///< nothing that they say matters
  std::set<std::shared_ptr<Link>> aside_;    ///< what they say does
  std::map<Member, ControlEndpoint> wanted_;
  std::set<Member> dialling_;
};

}  // namespace tokenyard::control
