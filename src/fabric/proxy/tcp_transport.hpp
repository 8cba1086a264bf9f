/// Puts and signals over TCP connections, several to each peer (put_frame.hpp).
///
/// - Short frames of a queue travel on the queue's path. Longer ones take the path that will have
///   sent them first, in parts of kPartBytes, so that other frames get in between.
/// - Between ranks with one interface each, a request completes once the system has copied its last
///   byte, and nothing else is acknowledged. A connection that breaks breaks all of its peer's;
///   they are never made again. Whether the peer is dead is for others to say; until then its
///   requests wait.
/// - Where a rank has several interfaces, a request completes once the peer has taken it. Queues
/// are
///   spread over the paths by their measured rates. A path that breaks, or on which nothing moves
///   while others are there, is given up: its frames go on over the others, and it is used again
///   once it has been made anew. If all have broken, requests wait.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/log.hpp"
#include "device/accelerator.hpp"
#include "fabric/proxy/awake_clock.hpp"
#include "fabric/proxy/peer_receiver.hpp"
#include "fabric/proxy/tcp_connector.hpp"
#include "fabric/proxy/transport.hpp"

namespace tokenyard {

class TcpTransport final : public Transport, private ReceiverListener {
 public:
  struct Options {
    uint32_t rank = 0;
    uint32_t epoch;
    uint32_t queues;  ///< per peer
    /// [ranks][paths] connections; none to ranks that are not reached
    std::vector<std::vector<FileDescriptor>> connections;
    /// [ranks] whether paths may be lost and made anew; the same at both ends. Empty: none.
    std::vector<bool> acknowledged = {};
    std::unique_ptr<TcpConnector> connector = {};  ///< has made the connections
    /// How long a path may have bytes to send and move none before others take over.
    std::chrono::nanoseconds stall = std::chrono::seconds(1);
    /// Lives of paths per peer, over which a peer that has no other fault is given up.
    size_t lives_max = 65536;
  };
  /// Throws OsError.
  explicit TcpTransport(Options options);

  std::string name() const override { return "tcp"; }
  void set_listener(TransportListener& listener) override { listener_ = &listener; }
  bool post(const PostedRequest& request) override;
  bool settle(uint32_t peer, uint32_t queue, uint32_t turn) override;
  bool poll() override;
  void sleep(std::chrono::nanoseconds at_most, int waker) override;
  void register_memory(MemoryKey key, std::span<std::byte> memory) override;
  void withdraw(uint32_t region) override;
  void drop(uint32_t peer, bool left) override;
  std::optional<std::string> broken(uint32_t peer) const override;
  std::chrono::nanoseconds silent_for(uint32_t peer) const override;
  bool may_return(uint32_t peer) const override { return !peers_[peer]->broken; }
  void close() override;
  std::vector<NetworkPath> paths() const override;

 private:
  static constexpr uint32_t kSlots = QueuePair::kSlots;
  static constexpr uint64_t kShortBytes = 32 << 10;
  static constexpr uint32_t kPartBytes = 1 << 20;
  /// Frames per peer that wait for a connection. A put of the largest size alone may exceed it.
  static constexpr uint32_t kQueuedMax = 512;
  static constexpr uint32_t kAnswersMax = 4096;
  /// Bytes that one call sends, if a frame alone is not longer: an acknowledgement waits for them.
  static constexpr size_t kSentAtOnce = size_t{1} << 20;
  /// Polls that read, without being told of bytes, where the last ones came from; and of these, how
  /// many pass between two calls for events.
  static constexpr uint32_t kHotPolls = 4096, kPollsPerEvents = 8;
  static constexpr std::chrono::milliseconds kLookAtPaths{10};
  /// Bytes of a measurement of a path's rate: fewer measure its latency.
  static constexpr uint64_t kMeasuredMin = 64 << 10;

  using Pieces = std::array<std::span<const std::byte>, 2>;
  struct Outgoing {
    PutFrame frame;
    std::array<std::byte, kPutFrameBytes> header;  ///< once it has its number
    Pieces pieces;
    uint32_t turn;
    bool is_request;  ///< else an answer, of which nothing is reported
    uint8_t origin;   ///< path by which a put is counted

    size_t bytes() const { return kPutFrameBytes + pieces[0].size() + pieces[1].size(); }
  };
  /// The facts of a path that other threads may read.
  struct Facts {
    uint32_t rank, number;
    std::string from, to;
    std::atomic<bool> up = true;
    std::atomic<uint64_t> bytes = 0, losses = 0;
    std::atomic<double> rate = 0;
  };
  struct Path {
    FileDescriptor socket;
    std::deque<Outgoing> outgoing;
    size_t numbered = 0;     ///< of these, from the front
    size_t sent = 0;         ///< bytes of the first one
    uint64_t queued = 0;     ///< bytes of all
    uint32_t sequence = 0;   ///< of the next frame to be numbered
    bool has_room = true;    ///< as far as is known
    bool has_bytes = false;  ///< as far as is known
    TimePoint moved{};       ///< bytes, last, or had none to move
    bool in_system = false;  ///< the peer's system may lack bytes that this one has taken
    uint64_t received = 0;   ///< bytes that the peer's system has, as last looked at
    Facts* facts = nullptr;
    // Where paths may be lost:
    bool up = true;
    uint32_t life = 0;
    std::deque<Outgoing> unacknowledged;  ///< sent wholly, oldest first
    uint64_t in_flight = 0;               ///< bytes of these
    uint32_t acknowledged = 0;            ///< PeerReceiver::worth_acknowledging, as it was told
    bool tells = false;                   ///< an acknowledgement is among `outgoing`
    uint64_t taken_bytes = 0;             ///< by the peer, since `measured_since`
    TimePoint measured_since{};           ///< it has been busy since then

    bool busy() const { return !outgoing.empty() || !unacknowledged.empty(); }
    TimePoint lost_since{};
    bool told_of_loss = true;
    std::string why;
  };
  /// The frames of a path's life that has ended, until the peer has told which of them it took.
  struct Retired {
    uint32_t path, life;
    std::deque<Outgoing> frames;
  };
  struct Closing {
    uint32_t path, life, count;
  };
  struct Peer {
    uint32_t rank;
    bool acknowledged = false;
    std::vector<Path> paths;
    std::vector<uint8_t> path_of;      ///< [queues] the path of short frames
    std::vector<PathCounts> sent;      ///< [queues] put frames
    std::vector<uint16_t> unsent;      ///< [queues][kSlots] frames of a request
    uint32_t queued = 0, answers = 0;  ///< frames that wait
    std::unique_ptr<PeerReceiver> receiver;
    std::optional<std::string> broken;
    bool left = false;  ///< nothing is sent to it any more
    // Where paths may be lost:
    std::vector<Retired> retired;
    std::deque<Outgoing> held;                       ///< until a path is up
    std::vector<Closing> closings;                   ///< news of the peer, not dealt with yet
    std::set<std::pair<uint32_t, uint32_t>> closed;  ///< paths' lives that were told to be closed
  };

  uint32_t path_for(const Peer& peer, uint32_t queue, uint64_t bytes) const;
  void enqueue(Peer& peer, uint32_t path, PutFrame frame, const Pieces& pieces, uint32_t turn,
               bool is_request);
  void append(Peer& peer, uint32_t path, Outgoing outgoing);
  void post_put(Peer& peer, const PostedRequest& request);
  void answer(uint32_t peer, PutFrame frame);
  void watch(const Peer& peer, uint32_t path);
  void look_for_events();
  bool send(Peer& peer, uint32_t path);
  void take_off(Peer& peer, Path& path, size_t bytes);
  void finish(Peer& peer, const Outgoing& outgoing);
  bool receive(Peer& peer, uint32_t path);
  void break_off(Peer& peer, const std::string& why);

  // Where paths may be lost.
  void acknowledge(Peer& peer, uint32_t path);
  void fail(Peer& peer, uint32_t path, const std::string& why);
  void lose(Peer& peer, uint32_t path, const std::string& why);
  void announce_closed(Peer& peer, uint32_t path, uint32_t life, uint32_t count);
  void deal_with(Peer& peer, const Closing& closing);
  void send_again(Peer& peer, Outgoing outgoing);
  void adopt(TcpConnector::Made made);
  void look_at_systems();
  void look_at_paths(TimePoint now);
  void look_at_path(Peer& peer, uint32_t path, TimePoint now);
  static void measure(Path& path, TimePoint now);
  static double weight(const Peer& peer, const Path& path);
  static void spread(Peer& peer);
  static bool any_up(const Peer& peer);
  bool outstanding() const;

  void refuse(uint32_t peer, uint32_t queue, NetworkCheck check,
              const NetworkRefusal& refusal) override;
  void answer_settled(uint32_t peer, uint32_t queue, uint32_t turn) override;
  void refused(uint32_t peer, uint32_t queue, NetworkCheck check,
               const NetworkRefusal& refusal) override;
  void settled(uint32_t peer, uint32_t queue, uint32_t turn) override;
  void taken(uint32_t peer, uint32_t path, uint32_t life, uint32_t count) override;
  void closed(uint32_t peer, uint32_t path, uint32_t life, uint32_t count) override;

  const uint32_t epoch_, queues_;
  const std::chrono::nanoseconds stall_;
  const size_t lives_max_;
  const Log log_;
  TransportListener* listener_ = nullptr;
  RegisteredRegions regions_;
  FileDescriptor events_;
  std::unique_ptr<TcpConnector> connector_;  ///< null where no path may be lost
  TimePoint last_look_{}, last_spread_{};
  AwakeClock awake_;
  TimePoint last_look_at_systems_{};
  uint32_t hot_polls_ = 0;
  Path* hot_ = nullptr;
  std::vector<std::unique_ptr<Peer>> peers_;  ///< [ranks] null for those that are not reached
  std::deque<Facts> facts_;
};

}  // namespace tokenyard
