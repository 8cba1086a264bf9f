/// Makes the connections between the proxies of a world's ranks, and makes them again when they
/// have been lost, without a thread of its own. The rank with the greater number dials. Both ends
/// prove by a handshake (net/handshake.hpp) that they know the job's secret; the payload that
/// follows is neither sealed nor encrypted.
///
/// A hello names the world's epoch and the number that the sought rank has drawn for this world, so
/// that a connection to an earlier world, or from one, is refused.
///
/// Path p of two ranks joins the dialler's interface p to the acceptor's interface p, each modulo
/// their number. A path has a life per connection; the dialler counts them.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "device/accelerator.hpp"
#include "fabric/proxy/put_frame.hpp"
#include "net/address.hpp"
#include "net/handshake.hpp"
#include "net/tcp_socket.hpp"

namespace tokenyard {

struct TcpOptions {
  /// IP address or host name of this rank's network card. Empty: of the card that the default route
  /// takes.
  std::string address = {};
  /// Names or addresses of this rank's network interfaces, in the order of those that they reach;
  /// then `address` is not used.
  std::vector<std::string> interfaces = {};
  uint16_t port_first = 0, port_last = 0;  ///< ports to listen at; 0: any
  /// Connections per peer, at most kPathsMax; alike on all ranks. 0: 2, or if there are more, as
  /// many as a rank has interfaces.
  uint32_t paths = 0;
  int socket_buffer_bytes = 0;  ///< per connection and direction; 0: as the system chooses
  std::optional<uint8_t> traffic_class = {};  ///< of its IP packets
};

/// Where a rank's proxy can be reached, and as what it is known.
struct TcpEndpoint {
  std::vector<net::Address> places;  ///< one per interface
  uint64_t incarnation = 0;
};

class TcpConnector {
 public:
  struct Self {
    uint32_t rank;
    uint32_t epoch;
    std::string secret;
  };
  /// A path that has been made.
  struct Made {
    uint32_t rank, path;
    uint32_t life;  ///< greater than of the path's connections before
    FileDescriptor socket;
  };
  /// Listens. Throws InvalidArgument for a wrong option, OsError.
  TcpConnector(const TcpOptions& options, const Self& self);

  const TcpEndpoint& endpoint() const { return endpoint_; }
  /// Sets the other ranks to connect with, by so many paths each.
  void begin(const std::map<uint32_t, TcpEndpoint>& peers, uint32_t paths);
  /// Makes progress; returns whether all connections are there.
  bool step(TimePoint now);
  /// Returns a rank whose connections are missing, with what is known of the reason.
  std::optional<std::pair<uint32_t, std::string>> missing() const;
  uint32_t connected(uint32_t rank) const;
  /// Returns the paths that have been made since the last call.
  std::vector<Made> take_made();

  /// Makes a path anew that has been lost. The peer may have made it already.
  void make_again(uint32_t rank, uint32_t path);
  /// Connects with a rank no more: one that dials is sent these bytes, and then the end.
  void turn_away(uint32_t rank, std::span<const std::byte> farewell);
  /// Returns whether `step` has something to do without a new connection.
  bool busy() const;
  /// Returns what becomes readable when a peer connects.
  std::vector<int> descriptors() const;
  /// Returns this rank's and the peer's end of a path, as text.
  std::pair<std::string, std::string> ends_of(uint32_t rank, uint32_t path) const;

 private:
  /// A connection whose handshake is not done.
  struct Greeting {
    FileDescriptor socket;
    net::Handshake handshake;
    TimePoint since;
    std::vector<std::byte> output, input;
  };
  struct Path {
    FileDescriptor socket;  ///< made and not taken
    bool wanted = true;
    uint32_t life = 0;  ///< of the last connection that was made or tried
    std::optional<Greeting> dialling;
    TimePoint rests_until{};  ///< no attempt before
    std::chrono::milliseconds rest{50};
  };
  struct Peer {
    TcpEndpoint endpoint;
    std::vector<Path> paths;
    std::string why = "it has not answered";
  };
  struct TurnedAway {
    uint64_t incarnation;
    std::vector<std::byte> farewell;
  };
  enum class Outcome : uint8_t { waits, done, failed };

  net::Introduction introduction(uint32_t path, uint32_t life, uint64_t sought) const;
  void dial(uint32_t rank, Peer& peer, uint32_t path, TimePoint now);
  void tune(const FileDescriptor& socket) const;
  void accept(TimePoint now);
  void advance_pending(TimePoint now);
  void adopt(Greeting& pending);
  /// Throws net::ProtocolError if the other end fails the handshake.
  static Outcome advance(Greeting& greeting, TimePoint now);

  const TcpOptions options_;
  const Self self_;
  const net::Key key_;
  std::vector<net::Listening> listening_;  ///< [interfaces]
  std::vector<net::Origin> origins_;       ///< [interfaces]
  TcpEndpoint endpoint_;
  bool again_ = false;  ///< whether paths have been lost
  std::map<uint32_t, Peer> peers_;
  std::map<uint32_t, TurnedAway> turned_away_;
  std::list<Greeting> pending_;  ///< oldest first
};

/// Returns an address of the interface with this name, or this address. Throws InvalidArgument,
/// which names the option, if there is none that is up.
std::string address_of_interface(const std::string& name, const std::string& option = "interface");
/// Returns the interfaces that are up, with their addresses. Throws OsError.
std::string interfaces_text();

}  // namespace tokenyard
