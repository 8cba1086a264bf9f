/// Makes the connections between the proxies of a world's ranks, without a thread of its own. The
/// rank with the greater number dials. Both ends prove by a handshake (net/handshake.hpp) that they
/// know the job's secret; the payload that follows is neither sealed nor encrypted.
///
/// A hello names the world's epoch and the number that the sought rank has drawn for this world, so
/// that a connection to an earlier world, or from one, is refused.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "device/accelerator.hpp"
#include "fabric/proxy/put_frame.hpp"
#include "net/handshake.hpp"
#include "net/tcp_socket.hpp"

namespace tokenyard {

struct TcpOptions {
  /// IP address or host name of this rank's network card. Empty: of `interface`, or if that is
  /// empty, too, of the card that the default route takes.
  std::string address = {};
  std::string interface = {};   ///< name of this rank's network card
  uint32_t paths = 2;           ///< connections per peer, at most kPathsMax; alike on all ranks
  int socket_buffer_bytes = 0;  ///< per connection and direction; 0: as the system chooses
};

/// Where a rank's proxy can be reached, and as what it is known.
struct TcpEndpoint {
  std::string address;
  uint16_t port = 0;
  uint64_t incarnation = 0;
};

class TcpConnector {
 public:
  struct Self {
    uint32_t rank;
    uint32_t epoch;
    std::string secret;
  };
  /// Listens. Throws InvalidArgument for a wrong option, OsError.
  TcpConnector(const TcpOptions& options, const Self& self);

  const TcpEndpoint& endpoint() const { return endpoint_; }
  /// Sets the other ranks to connect with.
  void begin(const std::map<uint32_t, TcpEndpoint>& peers);
  /// Makes progress; returns whether all connections are there.
  bool step(TimePoint now);
  /// Returns a rank whose connections are missing, with what is known of the reason.
  std::optional<std::pair<uint32_t, std::string>> missing() const;
  uint32_t connected(uint32_t rank) const;
  /// Returns the connections to a rank, by path.
  std::vector<FileDescriptor> take(uint32_t rank);

 private:
  /// A connection whose handshake is not done.
  struct Greeting {
    FileDescriptor socket;
    net::Handshake handshake;
    TimePoint since;
    std::vector<std::byte> output, input;
  };
  struct Peer {
    TcpEndpoint endpoint;
    std::vector<FileDescriptor> paths;
    std::vector<std::optional<Greeting>> dialling;  ///< [paths] empty where the peer dials
    std::vector<TimePoint> rests_until;             ///< [paths] no attempt before
    std::string why = "it has not answered";
  };
  enum class Outcome : uint8_t { waits, done, failed };

  net::Introduction introduction(uint32_t path, uint64_t sought) const;
  void dial(uint32_t rank, Peer& peer, uint32_t path, TimePoint now);
  void accept(TimePoint now);
  void advance_pending(TimePoint now);
  void adopt(Greeting& pending);
  /// Throws net::ProtocolError if the other end fails the handshake.
  static Outcome advance(Greeting& greeting, TimePoint now);

  const TcpOptions options_;
  const Self self_;
  const net::Key key_;
  net::Listening listening_;
  TcpEndpoint endpoint_;
  std::map<uint32_t, Peer> peers_;
  std::list<Greeting> pending_;  ///< oldest first
};

/// Returns an address of the interface. Throws InvalidArgument if it has none.
std::string address_of_interface(const std::string& name);

}  // namespace tokenyard
