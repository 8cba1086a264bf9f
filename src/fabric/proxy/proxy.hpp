/// A thread that works off the queues of one rank's kernels: it takes requests from the rings of
/// queue pairs (device/network_request.hpp), which lie in memory that host and kernels share, and
/// has a transport carry them.
///
///   kernel    a request into the ring, `posted` (release)        -> proxy acquires it
///   proxy     checks it, posts it to the transport
///   proxy     `completed` (release) once the sources were read   -> kernel acquires it
///
/// A kernel that waits never blocks the proxy, nor one queue another: each takes what its transport
/// has room for. The thread polls while there is work and for a while after, then sleeps until a
/// kernel on the host rings its doorbell or something arrives. It looks by itself at growing
/// intervals for kernels that cannot ring, those on GPUs.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/file_descriptor.hpp"
#include "device/accelerator.hpp"
#include "device/doorbell.hpp"
#include "fabric/proxy/registered_regions.hpp"
#include "fabric/proxy/transport.hpp"

namespace tokenyard {

struct ProxyOptions {
  /// How long the thread polls after it last had work, before it sleeps. Negative: as the number of
  /// this machine's cores suggests.
  std::chrono::nanoseconds spin{-1};
  /// The longest sleep while nothing is under way and kernels cannot ring.
  std::chrono::nanoseconds nap_max = std::chrono::milliseconds(1);
  bool kernels_ring = true;
  /// Requests of a queue that the transport may have at once, at most QueuePair::kSlots.
  uint32_t depth = QueuePair::kSlots;
  /// How long requests to a peer whose connection has broken, or is silent, wait for the news that
  /// it is gone.
  std::chrono::nanoseconds grace = std::chrono::seconds(5);
};

class Proxy final : private TransportListener {
 public:
  struct Queues {
    uint32_t per_peer;
    std::vector<QueuePair*> pairs;  ///< [ranks][per_peer] null where there is none
    const AbortWord* gone;          ///< [ranks] see is_gone
    AbortWord* refused;             ///< the rank's abort word, which a refusal sets to kRefused
  };
  /// Everything that `queues` points to outlives this. `on_failure` is called with the reason if
  /// the thread fails, on that thread.
  Proxy(std::unique_ptr<Transport> transport, const Queues& queues, const ProxyOptions& options,
        std::function<void(const std::string& why)> on_failure = {});
  /// Ends the thread. Requests that are under way may be lost: settle first.
  ~Proxy() override;
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  NetworkDoorbell* doorbell() { return &doorbell_; }
  const Transport& transport() const { return *transport_; }

  // Any thread may call these. `wait` waits as Accelerator::wait_until does.
  using Wait = std::function<bool(const std::function<bool()>& condition)>;

  void register_memory(MemoryKey key, std::span<std::byte> memory, const Wait& wait);
  /// Memory of a GPU, which is a target of peers' long puts and no source.
  void register_gpu_memory(MemoryKey key, std::span<std::byte> memory, const Wait& wait);
  /// Returns the rank whose requests still read the region, or which had not let go of it, when the
  /// time had passed.
  std::optional<uint32_t> deregister(MemoryKey key, const Wait& wait);
  /// Ends the queues with these numbers, [per_peer], for good: their requests end no wait any more.
  /// Then calls `at_end` on the thread with whether a request of another queue was refused.
  void retire(const std::vector<bool>& numbers, const std::function<void(bool others)>& at_end,
              const Wait& wait);
  /// Lets `settled` of all queues catch up with `posted`, as long as the result lives.
  std::shared_ptr<void> settle();
  /// Returns whether all posted requests have taken effect, but for refused ones.
  bool is_settled() const;
  /// Lets the thread poll without end, or no more, on a machine with cores enough: for kernels that
  /// cannot ring.
  void stay_awake(bool awake);
  /// Returns why the thread has ended early, if it has.
  std::optional<std::string> failure() const;
  /// Returns why requests to a peer have failed; empty if none have.
  std::string cause(uint32_t peer) const;
  /// Returns when requests to a peer first failed because it cannot be reached.
  std::optional<TimePoint> unreachable_since(uint32_t peer) const;

  // Counters for tests and metrics.
  uint64_t sleeps() const { return sleeps_.load(std::memory_order_relaxed); }
  bool asleep() const { return __atomic_load_n(&doorbell_.asleep, __ATOMIC_ACQUIRE) != 0; }
  /// Returns the processor time that the thread has used.
  std::chrono::nanoseconds processor_time();

 private:
  static constexpr uint32_t kSlots = QueuePair::kSlots;
  static constexpr uint32_t kBatch = 32;  ///< requests that a queue gives before the next one

  struct Queue {
    QueuePair* pair = nullptr;
    uint32_t peer = 0, number = 0;
    uint32_t taken = 0, completed = 0;
    uint32_t seen = 0;  ///< `posted`, as last looked at
    uint64_t done = 0;  ///< bit per turn % kSlots: completed, behind one that is not
    uint32_t asked = 0, settled = 0;
    std::optional<TimePoint> held_since;  ///< its peer's connection has been broken
    AbortWord gone = kNoAbort;            ///< how its peer is gone, as the transport was told
    bool ended = false;                   ///< a request was refused, or the queue is retired
    bool retired = false;
    bool changed = false;  ///< `completed` is not published
  };
  /// Work for the thread: repeated until it returns true.
  struct Task {
    std::function<bool()> step;
    std::atomic<bool> done = false;
  };

  void run();
  void work();
  bool run_tasks();
  bool run_task(const std::function<bool()>& step, const Wait& wait);
  void open_region(const std::function<void()>& open, const Wait& wait);
  bool take(Queue& queue);
  /// Returns false after a refusal.
  bool admit(Queue& queue, const NetworkRequest& request, PostedRequest& posted);
  bool admit_source(Queue& queue, const NetworkSource& source, std::span<const std::byte>& piece);
  void refuse(Queue& queue, NetworkCheck check, const NetworkRefusal& refusal);
  void publish();
  void ask_settled(Queue& queue);
  /// Looks for ranks that are gone, and connections that have broken.
  void poll_peers();
  void give_up(Queue& queue, const std::string& why);
  void forget(Queue& queue);
  void sleep();
  bool nothing_new() const;
  bool under_way() const;
  bool uses(const Queue& queue, uint32_t region) const;
  void wake();
  Queue& queue_of(uint32_t peer, uint32_t number) {
    return queues_[by_number_[peer * per_peer_ + number]];
  }

  void completed(uint32_t peer, uint32_t queue, uint32_t turn) override;
  void settled(uint32_t peer, uint32_t queue, uint32_t turn) override;
  void refused(uint32_t peer, uint32_t queue, NetworkCheck check,
               const NetworkRefusal& refusal) override;

  const std::unique_ptr<Transport> transport_;
  const ProxyOptions options_;
  const std::function<void(const std::string& why)> on_failure_;
  const uint32_t per_peer_;
  const AbortWord* gone_;
  AbortWord* refused_;
  std::vector<Queue> queues_;      ///< those that exist
  std::vector<size_t> by_number_;  ///< [ranks][per_peer] index in queues_
  std::vector<Queue*> changed_;
  RegisteredRegions sources_;
  std::array<MemoryKey, kNetworkRegions> of_gpu_{};  ///< keys of regions that are no sources
  FileDescriptor waker_;
  NetworkDoorbell doorbell_;
  std::chrono::nanoseconds nap_{0};
  std::atomic<uint64_t> sleeps_ = 0;
  std::atomic<uint32_t> settling_ = 0;
  std::atomic<bool> stops_ = false, has_tasks_ = false, stays_awake_ = false;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Task>> tasks_;  ///< under mutex_
  std::optional<std::string> failure_;        ///< under mutex_
  struct Unreachable {
    std::string cause;
    TimePoint since;
  };
  std::map<uint32_t, Unreachable> unreachable_;  ///< by peer, under mutex_
  std::thread thread_;
};

}  // namespace tokenyard
