/// The real transport of a process: shared memory to ranks of its host; TCP to all other ranks, and
/// to those of its host with which memory cannot be shared.
///
/// Roles: of two ranks, the one with the lower slot initiates all channels between them and decides
/// how: it posts a segment or connects. The acceptor takes whatever comes, and may ask for TCP
/// instead of a segment. So both ends always agree, and a channel that only one side has asked for
/// blocks nobody.
///
/// When a group is released, each end lets go of its channels in its own time. Segments are
/// unmapped at once, because the other end has its own mapping of whatever it has not read. A
/// connection stays until both ends have ended sending: closing it with unread bytes would reset
/// it, and destroy bytes under way. A ConnectRequest that comes later makes a channel that nobody
/// asks for; it is dropped when its initiator lets go.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/transports/channel_endpoint.hpp"
#include "collectives/transports/channel_listener.hpp"
#include "collectives/transports/dial.hpp"
#include "collectives/transports/epoch_gate.hpp"
#include "collectives/transports/options.hpp"
#include "collectives/transports/pair_channel.hpp"
#include "collectives/transports/shared_path.hpp"
#include "net/poller.hpp"

namespace tokenyard::collectives {

class WireTransport final : public Transport {
 public:
  /// Throws OsError if there is no free port or descriptor.
  explicit WireTransport(const WireOptions& options);
  ~WireTransport() override;

  Contact contact() const override;
  void begin_epoch(const View& view, const Contacts& contacts) override;
  /// Throws InvalidArgument if the peer is not another member of the epoch.
  std::shared_ptr<Channel> channel(GroupId group, Lane lane, Slot peer) override;
  void release(GroupId group) override;
  bool same_host(Slot peer) const override;
  uint64_t host_of(Slot slot) const override;

  void poll() override;
  void prepare_to_sleep() override;
  void sleep(std::chrono::nanoseconds at_most) override;
  void wake() override { poller_.wake(); }

  /// Returns why memory is not shared with a rank of this host, or why a connection fails; else
  /// empty.
  std::string reason(Slot peer) const;
  /// Returns the number of rejected requests and connections: of strangers, other jobs, older
  /// epochs. Callable from any thread.
  uint64_t refused() const { return shared_.refused() + listener_.refused(); }
  /// Returns the bytes sent by all channels since the start.
  uint64_t bytes_sent() const;

 private:
  struct Peer {
    Member member;
    ChannelEndpoint endpoint;
    std::string reason;
  };
  using Line = std::tuple<GroupId, Lane, Slot>;
  struct Pair {
    ChannelName name;
    std::shared_ptr<PairChannel> channel;
    uint32_t dialled = 0;    ///< stripes that this rank has begun to connect
    bool asked_for = false;  ///< requested by the engine here, not only by the other end
  };
  /// A released channel from which the other end may still receive.
  struct Lingering {
    std::unique_ptr<Channel> channel;
    TcpChannel* tcp;
  };

  Peer& peer_of(const Pair& pair);
  Pair& pair_of(const ChannelName& name);
  Pair& find_or_make(GroupId group, Lane lane, Slot peer);
  bool offers(const Pair& pair) const;
  void invite(Pair& pair);
  void invite_by_tcp(Pair& pair, const std::string& reason);
  void use_tcp(Pair& pair, uint32_t stripes, uint64_t turn_bytes);
  void dial(Pair& pair, uint32_t stripe);

  void look();
  void poll_mailbox();
  void poll_listener(WireTime now);
  void poll_dials(WireTime now);
  void dial_busy_pairs();
  bool is_settled(const Pair& pair) const;
  void let_go(const Pair& pair);
  void let_go_of_strays();

  const WireOptions options_;
  const std::string host_;
  const net::Key key_;
  EpochGate gate_;
  net::Poller poller_;
  SharedPath shared_;
  ChannelListener listener_;

  std::map<Slot, Peer> peers_;
  std::map<Line, Pair> pairs_;
  std::vector<Dial> dials_;
  std::vector<Lingering> lingering_;
  uint64_t bytes_of_past_epochs_ = 0;

  bool unsettled_ = false;  ///< some channel waits for its other end: look often
  uint64_t polls_ = 0;
  /// Set by `poll` for `sleep`, which holds no lock.
  std::atomic<int64_t> nap_max_ns_;
  std::atomic<bool> has_slept_ = false;
};

}  // namespace tokenyard::collectives
