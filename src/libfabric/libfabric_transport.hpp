/// Puts and signals over one endpoint of libfabric (message.hpp has the protocol).
///
/// - Long puts are writes into the peer's memory, in parts of kPartBytes. Queues take turns.
/// - Short ones, signals and all else are messages. A message that needs order waits for what the
///   network's own order does not give (Order).
/// - A request completes once its sources are free, which says nothing of the peer.
/// - An operation that fails breaks off its peer, and no other. It is never made again.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fabric/proxy/awake_clock.hpp"
#include "fabric/proxy/transport_maker.hpp"
#include "libfabric/peer_card.hpp"
#include "libfabric/peer_inbox.hpp"
#include "libfabric/provider.hpp"

namespace tokenyard::libfabric {

/// The means by which a signal comes after the puts of its queue.
enum class Order : uint8_t {
  promised,   ///< the network's order: it is sent after them
  counted,    ///< each put tells its target, which counts them
  delivered,  ///< it is sent once they have landed
};

Order order_of(const Provider::Facts& facts);

class LibfabricTransport final : public Transport, private InboxListener {
 public:
  struct Options {
    TransportPlace place;
    PeerCard own;
    std::vector<std::optional<PeerCard>> peers;  ///< [ranks] those that are reached
  };
  /// Throws OsError.
  LibfabricTransport(std::unique_ptr<Provider> provider, Options options);
  ~LibfabricTransport() override;
  LibfabricTransport(const LibfabricTransport&) = delete;

  /// Makes progress; returns whether every peer has been heard.
  bool meet();
  /// Returns a peer that has not been heard, and why.
  std::optional<std::pair<uint32_t, std::string>> missing() const;
  const Provider& provider() const { return *provider_; }

  std::string name() const override { return "libfabric"; }
  void set_listener(TransportListener& listener) override { listener_ = &listener; }
  bool post(const PostedRequest& request) override;
  bool settle(uint32_t peer, uint32_t queue, uint32_t turn) override;
  bool poll() override;
  void sleep(std::chrono::nanoseconds at_most, int waker) override;
  void register_memory(MemoryKey key, std::span<std::byte> memory) override;
  void register_gpu_memory(MemoryKey key, std::span<std::byte> memory) override;
  void withdraw(uint32_t region) override;
  std::optional<uint32_t> holder_of(uint32_t region) const override;
  void drop(uint32_t peer, bool left) override;
  std::optional<std::string> broken(uint32_t peer) const override;
  std::chrono::nanoseconds silent_for(uint32_t peer) const override;
  void close() override;
  std::vector<NetworkPath> paths() const override;

 private:
  static constexpr uint32_t kSlots = QueuePair::kSlots;
  static constexpr uint64_t kPartBytes = 1 << 20;
  static constexpr uint32_t kQueuedMax = 512;  ///< messages and parts that wait, per peer
  static constexpr uint32_t kWritesMax = 64;   ///< under way, per peer
  static constexpr uint32_t kAnswersMax = 4096;
  /// How often a path's time to stall a region waits for a peer that says nothing.
  static constexpr int kReleaseStalls = 5;
  static constexpr size_t kAtOnce = 64;  ///< completions per poll
  static constexpr std::chrono::milliseconds kLookAtPeers{10};

  using Buffer = std::array<std::byte, 128>;

  struct Sending final : Operation {
    std::span<std::byte> buffer;
    std::optional<uint32_t> queue, turn;  ///< of the request that completes with it
  };
  struct Receiving final : Operation {
    std::span<std::byte> buffer;
  };
  struct Part {
    std::array<std::span<const std::byte>, 2> pieces;
    uint64_t target;
    MemoryKey key;
    uint32_t turn, group;
    bool skipped = false;
  };
  struct Writing final : Operation {
    uint32_t queue = 0, turn = 0, number = 0;  ///< number: among the queue's writes
    MemoryKey key = 0;
    bool under_way = false;
    bool reported = true;               ///< its peer has not been dropped since
    std::array<uint32_t, 2> regions{};  ///< numbers of those that it reads, + 1
  };
  /// A message that waits: for credit, or for earlier writes of its queue.
  struct Waiting {
    Message message;
    uint32_t after = 0;              ///< so many writes
    std::optional<uint32_t> turn{};  ///< of the request that completes with it
    bool is_answer = false;
  };
  /// A peer's memory, as it has told.
  struct Remote {
    enum class State : uint8_t { asked, open, none } state = State::asked;
    uint64_t base = 0, bytes = 0, key = 0;
    uint32_t writes = 0;  ///< under way
    bool released = false;
  };
  struct Queue {
    std::deque<Part> parts;
    uint32_t accepted = 0, posted = 0, done = 0;  ///< writes, each behind all before it
    std::deque<bool> done_early;                  ///< writes from `done` on
    std::array<uint32_t, kSlots> unwritten{};     ///< [turn % kSlots] parts of a request
    uint32_t group = 0, in_group = 0;             ///< the open group, and its puts
  };
  struct Facts {
    uint32_t rank;
    std::atomic<bool> up = true;
    std::atomic<uint64_t> bytes = 0;
  };
  struct Peer {
    uint32_t rank;
    uint64_t address, token;
    std::unique_ptr<PeerInbox> inbox;
    std::vector<Queue> queues;
    uint32_t next_queue = 0;
    std::deque<Waiting> messages;
    uint32_t parts = 0, answers = 0;  ///< that wait
    uint32_t sequence = 0;
    uint32_t credits_max, credits, credits_for_credits;  ///< messages that may be sent
    uint32_t owed = 0, owed_for_credits = 0;             ///< credits to return
    uint32_t sends = 0, writes = 0;                      ///< under way
    std::map<MemoryKey, Remote> remotes;
    bool met = false, left = false;
    bool deaf = false;  ///< nothing of it is taken any more
    bool said_goodbye = false;
    std::optional<std::string> broken;
    TimePoint moved{};        ///< anything, last, or had nothing to move
    bool unanswered = false;  ///< something was sent, and no probe behind it
    bool probing = false;
    Facts* facts = nullptr;

    bool busy() const {
      return sends != 0 || writes != 0 || parts != 0 || !messages.empty() || probing;
    }
  };
  /// A region that has been withdrawn and may still be written to.
  struct Closing {
    MemoryKey key;
    std::unique_ptr<Region> region;
    std::set<uint32_t> peers;
  };

  void open(MemoryKey key, std::span<std::byte> memory, std::unique_ptr<Region> region,
            bool by_host);
  Remote* resolve(Peer& peer, uint32_t queue, MemoryKey key);
  bool post_put(Peer& peer, const PostedRequest& request);
  void enqueue(Peer& peer, const Message& message, uint32_t after = 0,
               std::optional<uint32_t> turn = {}, bool is_answer = false);
  bool pump(Peer& peer);
  bool pump_writes(Peer& peer);
  bool write(Peer& peer, uint32_t queue);
  bool is_due(const Peer& peer, const Waiting& waiting) const;
  bool send(Peer& peer, Message message, std::optional<uint32_t> turn);
  void return_credits(Peer& peer);
  void receive_again(Receiving& receiving);
  void finish(const Completion& completion);
  void finished(Sending& sending, int error);
  void finished(Writing& writing, int error);
  void received(Receiving& receiving, size_t bytes);
  void landed(uint32_t data);
  void mark_done(Peer& peer, uint32_t queue, uint32_t number, uint32_t turn);
  void skip(Peer& peer, uint32_t queue);
  void end_group(Peer& peer, Message& message);
  void release(Peer& peer, MemoryKey key);
  void stop_sending(Peer& peer);
  void say_goodbye(Peer& peer);
  void stop_writing(Peer& peer, MemoryKey key, Remote& remote);
  void break_off(Peer& peer, const std::string& why);
  void look_at_peers();
  uint32_t region_with(std::span<const std::byte> bytes) const;
  Peer* peer_of(uint32_t rank) { return rank < peers_.size() ? peers_[rank].get() : nullptr; }

  void refuse(uint32_t peer, uint32_t queue, NetworkCheck check,
              const NetworkRefusal& refusal) override;
  void answer_settled(uint32_t peer, uint32_t queue, uint32_t turn) override;
  void credited(uint32_t peer) override;
  void released(uint32_t peer, MemoryKey key) override;
  void take(uint32_t peer, const Message& message) override;

  const TransportPlace place_;
  const uint64_t token_;
  const uint32_t granted_;  ///< credits of each peer
  TransportListener* listener_ = nullptr;
  AwakeClock awake_;
  TimePoint last_look_{};
  RegisteredRegions regions_;
  std::vector<std::unique_ptr<Peer>> peers_;  ///< [ranks] null for those that are not reached
  std::deque<Facts> facts_;
  uint64_t unknown_ = 0;  ///< messages of no member

  std::vector<Buffer> buffers_;
  std::deque<Sending> sendings_;
  std::deque<Receiving> receivings_;
  std::deque<Writing> writings_;
  std::vector<Sending*> idle_sendings_;
  std::vector<Receiving*> idle_receivings_;  ///< to be posted
  std::vector<Writing*> idle_writings_;
  std::array<std::unique_ptr<Region>, kNetworkRegions> registered_;
  std::array<MemoryKey, kNetworkRegions> keys_{};
  std::array<std::span<std::byte>, kNetworkRegions> memory_{};  ///< open as a source or a target
  std::array<std::set<uint32_t>, kNetworkRegions> holders_;  ///< peers that know where a region is
  std::vector<Closing> closing_;
  std::array<uint32_t, kNetworkRegions> readers_{};  ///< writes under way that read a region
  struct Done {
    uint32_t peer, queue, turn;
  };
  std::vector<Done> empty_;  ///< puts without bytes, to be reported
  std::unique_ptr<Region> buffers_region_;
  std::unique_ptr<Provider> provider_;
  Order order_;
};

}  // namespace tokenyard::libfabric
