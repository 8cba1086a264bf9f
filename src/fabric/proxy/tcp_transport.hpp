/// Puts and signals over TCP connections, several to each peer (put_frame.hpp).
///
/// - Short frames of a queue travel on its own path, in order. Longer ones take the path with the
///   fewest bytes before them, in parts of kPartBytes, so that other frames get in between.
/// - A request completes once the system has copied its last byte. Nothing else is acknowledged.
/// - A connection that breaks breaks all of its peer's; they are never made again. Whether the peer
///   is dead is for others to say; until then its requests wait.
#pragma once

#include <deque>
#include <memory>

#include "base/file_descriptor.hpp"
#include "fabric/proxy/peer_receiver.hpp"
#include "fabric/proxy/transport.hpp"

namespace tokenyard {

class TcpTransport final : public Transport, private ReceiverListener {
 public:
  struct Options {
    uint32_t epoch;
    uint32_t queues;  ///< per peer
    /// [ranks][paths] connections; none to ranks that are not reached
    std::vector<std::vector<FileDescriptor>> connections;
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
  void drop(uint32_t peer) override;
  std::optional<std::string> broken(uint32_t peer) const override;
  void close() override;

 private:
  static constexpr uint32_t kSlots = QueuePair::kSlots;
  static constexpr uint64_t kShortBytes = 32 << 10;
  static constexpr uint32_t kPartBytes = 1 << 20;
  /// Frames per peer that wait for a connection. A put of the largest size alone may exceed it.
  static constexpr uint32_t kQueuedMax = 512;
  static constexpr uint32_t kAnswersMax = 4096;
  /// Polls that read, without being told of bytes, where the last ones came from; and of these, how
  /// many pass between two calls for events.
  static constexpr uint32_t kHotPolls = 4096, kPollsPerEvents = 8;

  struct Outgoing {
    std::array<std::byte, kPutFrameBytes> header;
    std::array<std::span<const std::byte>, 2> pieces;
    uint32_t queue, turn;
    bool is_request;  ///< else an answer, of which nothing is reported

    size_t bytes() const { return kPutFrameBytes + pieces[0].size() + pieces[1].size(); }
  };
  struct Path {
    FileDescriptor socket;
    std::deque<Outgoing> outgoing;
    size_t sent = 0;         ///< bytes of the first one
    uint64_t queued = 0;     ///< bytes of all
    uint32_t sequence = 0;   ///< of the next frame
    bool has_room = true;    ///< as far as is known
    bool has_bytes = false;  ///< as far as is known
  };
  struct Peer {
    uint32_t rank;
    std::vector<Path> paths;
    std::vector<PathCounts> sent;      ///< [queues] put frames
    std::vector<uint16_t> unsent;      ///< [queues][kSlots] frames of a request
    uint32_t queued = 0, answers = 0;  ///< frames that wait
    std::unique_ptr<PeerReceiver> receiver;
    std::optional<std::string> broken;
  };

  uint32_t own_path(const Peer& peer, uint32_t queue) const {
    return queue % static_cast<uint32_t>(peer.paths.size());
  }
  uint32_t path_for(const Peer& peer, uint32_t queue, uint64_t bytes) const;
  void enqueue(Peer& peer, uint32_t path, PutFrame frame,
               const std::array<std::span<const std::byte>, 2>& pieces, uint32_t turn,
               bool is_request);
  void post_put(Peer& peer, const PostedRequest& request);
  void answer(uint32_t peer, PutFrame frame);
  void look_for_events();
  bool send(Peer& peer, Path& path);
  void take_off(Peer& peer, Path& path, size_t bytes);
  bool receive(Peer& peer, uint32_t path);
  void break_off(Peer& peer, const std::string& why);

  void refuse(uint32_t peer, uint32_t queue, NetworkCheck check,
              const NetworkRefusal& refusal) override;
  void answer_settled(uint32_t peer, uint32_t queue, uint32_t turn) override;
  void refused(uint32_t peer, uint32_t queue, NetworkCheck check,
               const NetworkRefusal& refusal) override;
  void settled(uint32_t peer, uint32_t queue, uint32_t turn) override;

  const uint32_t epoch_, queues_;
  TransportListener* listener_ = nullptr;
  RegisteredRegions regions_;
  FileDescriptor events_;
  uint32_t hot_polls_ = 0;
  Path* hot_ = nullptr;
  std::vector<std::unique_ptr<Peer>> peers_;  ///< [ranks] null for those that are not reached
};

}  // namespace tokenyard
