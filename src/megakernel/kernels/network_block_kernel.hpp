/// The network block: the last block of a rank some of whose peers are far. It runs no tasks.
///
///     outgoing, a warp per far peer or several
///       Lane 0 waits until a task that sends to the peer has ended. Then each lane looks at the
///       events of some messages' tasks, and lane 0 alone posts: the puts of a message, then its
///       signals, on the one queue to that peer. Once the network has read the puts' sources, it
///       signals the event that the task awaits before it writes to its mirror again.
///     incoming, warp 0
///       A lane per event that far ranks signal adds what has landed to the event's counter, so
///       that workers await signals of far ranks as they do those of near ones.
///
/// Invariants.
/// 1. A signal is posted behind the puts of its own message, on the same queue, so whoever sees it
///    sees what its task wrote. Nothing orders different messages; the compiler relies on no more
///    (proofs.hpp).
/// 2. A mirror is written again only after `read`: no request under way reads it.
/// 3. The words of the landing that signals add to are written by nothing else, and only grow.
/// 4. It leaves after all workers have left and everything they sent was posted and read, so the
///    next run finds the counts where they ended. Signals that land later are passed on by it.
#pragma once

#include "megakernel/kernels/ready_kernel.hpp"

namespace tokenyard::megakernel {

class NetworkBlock {
 public:
  TOKENYARD_DEVICE explicit NetworkBlock(const RunParams& params)
      : params_(params), network_(params.network), idle_(idle_wait_context(params)) {}

  /// Called by all threads of the block.
  TOKENYARD_DEVICE void run() {
    const uint32_t senders = block::threads() / kWarpLanes - 1;
    if (warp::index() == 0) {
      receive();
    } else {
      send(warp::index() - 1, senders);
    }
    block::sync();
    // Relaxed: nobody adds to it before the next launch, unless the run has failed.
    if (thread::index() == 0) store<Order::relaxed, Scope::gpu>(network_.left, 0);
  }

 private:
  /// For waits for work: waits of workers have the deadlines, and end these, too.
  TOKENYARD_DEVICE Deadline no_deadline() const { return Deadline(idle_, 0); }
  /// For a request, from now on.
  TOKENYARD_DEVICE Deadline deadline() const { return Deadline(params_.wait_context, now_ns()); }
  TOKENYARD_DEVICE uint32_t phase() const { return phase_of(params_, RunPhase::network); }
  /// Acquires all signals of the workers that have left.
  TOKENYARD_DEVICE bool all_have_left() const {
    return load<Order::acquire, Scope::gpu>(network_.left) == params_.workers;
  }

  // ---- incoming

  TOKENYARD_DEVICE void receive() const {
    // Lanes without a word have nothing to do.
    if (warp::lane() >= network_.peers && warp::lane() >= network_.incoming_count) return;
    Awaited what{.phase = phase(), .rank = params_.rank};
    for (bool over = false; !over;) {
      const bool fine = wait_until(no_deadline(), what, [&] {
        over = all_have_left();
        return over || has_news();
      });
      if (!fine) return;
      for (uint32_t peer = warp::lane(); peer < network_.peers; peer += kWarpLanes)
        pass_ready_on(peer);
      for (uint32_t i = warp::lane(); i < network_.incoming_count; i += kWarpLanes)
        pass_signals_on(i);
    }
  }

  TOKENYARD_DEVICE bool has_news() const {
    bool news = false;
    // Relaxed: what is passed on is acquired there.
    for (uint32_t peer = warp::lane(); peer < network_.peers; peer += kWarpLanes)
      news |= load<Order::relaxed, Scope::sys>(&ready_of(network_.far_peers[peer].rank).runs) !=
              network_.begun[peer];
    for (uint32_t i = warp::lane(); i < network_.incoming_count; i += kWarpLanes)
      news |= load<Order::relaxed, Scope::sys>(landed_of(i)) != network_.taken[i];
    return news;
  }

  TOKENYARD_DEVICE const FarReady& ready_of(uint32_t rank) const {
    return *reinterpret_cast<const FarReady*>(network_.landing + network_.layout.ready_at(rank));
  }
  TOKENYARD_DEVICE const uint64_t* landed_of(uint32_t i) const {
    return reinterpret_cast<const uint64_t*>(network_.landing +
                                             network_.layout.signals_at(network_.incoming[i]));
  }

  /// Writes a far rank's ready word to this rank's window once it has begun a run.
  TOKENYARD_DEVICE void pass_ready_on(uint32_t peer) const {
    const uint32_t rank = network_.far_peers[peer].rank;
    const FarReady& ready = ready_of(rank);
    // Acquires the word that was put before the signal.
    const uint64_t runs = load<Order::acquire, Scope::sys>(&ready.runs);
    if (runs == network_.begun[peer]) return;
    network_.begun[peer] = runs;
    store<Order::release, Scope::sys>(params_.windows.ready_word(params_.rank, rank),
                                      ready.words[runs & 1]);
  }

  TOKENYARD_DEVICE void pass_signals_on(uint32_t i) const {
    // Acquires the puts before each signal of the sum.
    const uint64_t landed = load<Order::acquire, Scope::sys>(landed_of(i));
    const uint64_t before = network_.taken[i];
    if (landed == before) return;
    network_.taken[i] = landed;
    add<Order::release, Scope::sys>(params_.windows.own_counter(network_.incoming[i]),
                                    landed - before);
  }

  // ---- outgoing

  TOKENYARD_DEVICE void send(uint32_t sender, uint32_t senders) const {
    if (sender >= network_.peers) return;
    bool fine = warp::once([&] {
                  bool begun = true;
                  for (uint32_t peer = sender; peer < network_.peers; peer += senders)
                    begun = begin(network_.far_peers[peer]) && begun;
                  return begun ? 1u : 0u;
                }) != 0;
    enum : uint32_t { kFailed, kNews, kOver };
    for (bool over = false; fine && !over;) {
      const uint32_t news = warp::once([&] {
        bool all_left = false;
        Awaited what{.phase = phase(), .rank = params_.rank};
        const bool came = wait_until(no_deadline(), what, [&] {
          // First: what workers sent before they left is then seen.
          all_left = all_have_left();
          bool any = all_left;
          for (uint32_t peer = sender; peer < network_.peers; peer += senders)
            any |= has_work(peer);
          return any;
        });
        return !came ? kFailed : all_left ? kOver : kNews;
      });
      fine = news != kFailed;
      over = news == kOver;
      for (uint32_t peer = sender; peer < network_.peers && fine; peer += senders)
        fine = serve(peer, over);
    }
  }

  TOKENYARD_DEVICE uint64_t published(uint32_t peer) const {
    // Relaxed: what the tasks have written is acquired through their own events.
    return load<Order::relaxed, Scope::gpu>(
        params_.windows.own_counter(network_.far_peers[peer].published));
  }
  TOKENYARD_DEVICE bool has_work(uint32_t peer) const {
    return published(peer) != network_.handled[peer] || oldest_was_read(peer);
  }

  TOKENYARD_DEVICE NetworkQueue queue_to(const FarPeer& peer) const {
    return network_.queues.of(peer.rank, network_.queue);
  }

  /// Tells a far rank that this one has begun the run: its host and kernels have read all results
  /// of the run before.
  TOKENYARD_DEVICE bool begin(const FarPeer& peer) const {
    const Stamped word{params_.run, run_length(params_)};
    const uint64_t at = offsetof(FarReady, words) + (params_.run & 1) * sizeof(Stamped);
    return queue_to(peer).put_inline_and_signal(deadline(), phase(), peer.ready + at, &word,
                                                sizeof word, peer.ready, 1);
  }

  /// Sends, by a warp, what tasks have sent, and passes on what was read. `last`: the workers have
  /// left; then everything is sent, and has been read. Returns false if the run has failed.
  TOKENYARD_DEVICE bool serve(uint32_t number, bool last) const {
    const FarPeer& peer = network_.far_peers[number];
    bool fine = true;
    for (bool again = true; again && fine;) {
      uint32_t sent = 0;
      for (uint32_t first = 0; first < peer.messages; first += kWarpLanes) {
        const uint32_t mine = peer.messages_at + first + warp::lane();
        const uint32_t times = first + warp::lane() < peer.messages ? times_sent(mine) : 0;
        for (uint32_t left = warp::ballot(times > 0); left != 0; left &= left - 1) {
          const uint32_t lane = first_bit(left), n = warp::shuffle(times, lane);
          sent += n;
          // Orders the lane's acquire before the posts.
          fine = warp::once([&] {
                   return fine && post(number, peer.messages_at + first + lane, n) ? 1u : 0u;
                 }) != 0;
        }
      }
      // A task signals its two events in any order.
      again = warp::once([&] {
                network_.handled[number] += sent;
                return last && published(number) != network_.handled[number] ? 1u : 0u;
              }) != 0;
    }
    return warp::once([&] { return fine && pass_read_on(number, last) ? 1u : 0u; }) != 0;
  }

  /// Returns how often the message's task has run since the last look. More than once only if the
  /// message has no puts: a task that puts awaits `read` first.
  TOKENYARD_DEVICE uint32_t times_sent(uint32_t message) const {
    const uint64_t before = network_.sent[message];
    // Acquires what the task has written.
    const uint64_t runs = load<Order::acquire, Scope::gpu>(
        params_.windows.own_counter(network_.messages[message].sent));
    network_.sent[message] = runs;
    return static_cast<uint32_t>(runs - before);
  }

  TOKENYARD_DEVICE bool post(uint32_t peer, uint32_t number, uint32_t times) const {
    const FarMessageRecord& message = network_.messages[number];
    const NetworkQueue queue = queue_to(network_.far_peers[peer]);
    const Deadline until = deadline();
    const FarSignal* const signals = network_.signals + message.signals_at;
    bool fine = true;
    for (uint32_t i = 0; i < message.puts && fine; ++i) {
      const FarPut& put = network_.puts[message.puts_at + i];
      // The last put and the first signal are one request to the network.
      fine = i + 1 < message.puts ? queue.put(until, phase(), put.target, put.source)
                                  : queue.put_and_signal(until, phase(), put.target, put.source,
                                                         signals[0].word, signals[0].count);
    }
    for (uint32_t i = message.puts == 0 ? 0 : 1; i < message.signals && fine; ++i)
      fine = queue.signal(until, phase(), signals[i].word, signals[i].count * times);
    if (fine && message.read != kNoEvent) note_unread(peer, number, queue.posted());
    return fine;
  }

  // The ring of a peer: as many entries as messages, of which each is in it at most once.

  TOKENYARD_DEVICE UnreadMessage& unread(uint32_t peer, uint32_t place) const {
    const FarPeer& of = network_.far_peers[peer];
    return network_.unread[of.messages_at + place % of.messages];
  }
  TOKENYARD_DEVICE void note_unread(uint32_t peer, uint32_t message, uint32_t ticket) const {
    UnreadRing& ring = network_.rings[peer];
    unread(peer, ring.end) = {.message = message, .ticket = ticket};
    ++ring.end;
  }
  TOKENYARD_DEVICE bool oldest_was_read(uint32_t peer) const {
    const UnreadRing& ring = network_.rings[peer];
    return ring.begin != ring.end &&
           queue_to(network_.far_peers[peer]).has_read(unread(peer, ring.begin).ticket);
  }
  TOKENYARD_DEVICE bool pass_read_on(uint32_t peer, bool last) const {
    UnreadRing& ring = network_.rings[peer];
    if (last && ring.begin != ring.end &&
        !queue_to(network_.far_peers[peer]).flush(deadline(), phase()))
      return false;
    for (; oldest_was_read(peer); ++ring.begin) {
      const FarMessageRecord& oldest = network_.messages[unread(peer, ring.begin).message];
      // Release: the network's reads precede the task's next writes.
      add<Order::release, Scope::gpu>(params_.windows.own_counter(oldest.read), 1);
    }
    return true;
  }

  const RunParams& params_;
  const NetworkBlockParams& network_;
  const WaitContext idle_;
};

/// Runs the network block, apart from workers: it takes no registers from tasks.
TOKENYARD_DEVICE_APART void run_network_block(const RunParams* params) {
  NetworkBlock(*params).run();
}

/// Tells the network block, by a worker's first thread, that the worker has left. Release: all that
/// its block has signalled.
TOKENYARD_DEVICE void leave_to_network(const RunParams& params) {
  if (params.network.blocks != 0 && thread::index() == 0)
    add<Order::release, Scope::gpu>(params.network.left, 1);
}

}  // namespace tokenyard::megakernel
