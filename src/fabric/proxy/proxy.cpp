#include "fabric/proxy/proxy.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/os_failure.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

// The host's side of words that kernels share: pinned memory of a GPU, too.
uint32_t load_acquire(const uint32_t& word) {
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}
void store_release(uint32_t& word, uint32_t value) {
  __atomic_store_n(&word, value, __ATOMIC_RELEASE);
}

/// Returns how the peer is gone; nothing while it is there.
std::optional<AbortWord> has_gone(const AbortWord& gone) {
  // Relaxed, as in is_gone().
  const AbortWord word = __atomic_load_n(&gone, __ATOMIC_RELAXED);
  if (word == kNoAbort || word == kCancelled) return std::nullopt;
  return word;
}

/// With few cores, another thread needs this one: a peer's, or the kernel that posts.
bool has_many_cores() {
  return std::thread::hardware_concurrency() >= 8;
}

std::chrono::nanoseconds chosen_spin(std::chrono::nanoseconds asked) {
  if (asked >= std::chrono::nanoseconds::zero()) return asked;
  return has_many_cores() ? std::chrono::microseconds(1000) : std::chrono::microseconds(20);
}

constexpr std::chrono::milliseconds kLookAround{1};
constexpr std::chrono::milliseconds kSleepUnderWay{5};
constexpr std::chrono::hours kLongSleep{1};
constexpr std::chrono::microseconds kFirstNap{50};
/// Polls without work between two looks at the clock.
constexpr uint32_t kPollsPerLook = 16;

}  // namespace

Proxy::Proxy(std::unique_ptr<Transport> transport, const Queues& queues,
             const ProxyOptions& options, std::function<void(const std::string& why)> on_failure)
    : transport_(std::move(transport)),
      options_(options),
      on_failure_(std::move(on_failure)),
      per_peer_(queues.per_peer),
      gone_(queues.gone),
      refused_(queues.refused),
      by_number_(queues.pairs.size()),
      waker_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!waker_) os_failed("eventfd");
  doorbell_.event = waker_.native();
  for (size_t index = 0; index < queues.pairs.size(); ++index) {
    QueuePair* const pair = queues.pairs[index];
    if (pair == nullptr) continue;
    by_number_[index] = queues_.size();
    const uint32_t first = load_acquire(pair->posted);
    queues_.push_back({.pair = pair,
                       .peer = static_cast<uint32_t>(index / per_peer_),
                       .number = static_cast<uint32_t>(index % per_peer_),
                       .taken = first,
                       .completed = first,
                       .seen = first,
                       .done = 0,
                       .asked = first,
                       .settled = first,
                       .held_since = {}});
  }
  changed_.reserve(queues_.size());
  transport_->set_listener(*this);
  thread_ = std::thread([this] { run(); });
}

Proxy::~Proxy() {
  stops_ = true;
  wake();
  thread_.join();
}

void Proxy::wake() {
  const uint64_t one = 1;
  (void)!::write(waker_.native(), &one, sizeof one);
}

void Proxy::run() {
  (void)pthread_setname_np(pthread_self(), "tokenyard-proxy");
  try {
    work();
    transport_->close();
  } catch (const std::exception& error) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = error.what();
      for (const auto& task : tasks_) task->done = true;
      tasks_.clear();
    }
    for (Queue& queue : queues_)
      refuse(queue, NetworkCheck::connection,
             {.region = 0, .expected = queue.taken, .seen = queue.completed});
    const auto attempt = [](const auto& step) {
      try {
        step();
      } catch (const std::exception&) {
        // The first failure is the one that is told.
      }
    };
    // Peers must not wait for a thread that is no more. They learn why before connections break.
    attempt([&] {
      if (on_failure_ && !stops_) on_failure_(error.what());
    });
    attempt([&] { transport_->close(); });
  }
}

void Proxy::work() {
  const auto spin = chosen_spin(options_.spin);
  TimePoint last_work = Clock::now(), last_look = last_work;
  for (uint32_t polls = 0; !stops_.load(std::memory_order_relaxed); ++polls) {
    bool moved = has_tasks_.load(std::memory_order_acquire) && run_tasks();
    for (Queue& queue : queues_) moved |= take(queue);
    moved |= transport_->poll();
    publish();
    if (settling_.load(std::memory_order_acquire) != 0)
      for (Queue& queue : queues_) ask_settled(queue);
    if (!moved && polls % kPollsPerLook != 0) continue;
    const TimePoint now = Clock::now();
    if (now - last_look >= kLookAround) {
      last_look = now;
      poll_peers();
    }
    if (moved) {
      last_work = now;
      nap_ = kFirstNap;
    } else if (now - last_work >= spin && !stays_awake_.load(std::memory_order_relaxed)) {
      sleep();
      last_look = {};  // It may have been long.
    }
  }
}

bool Proxy::take(Queue& queue) {
  // Acquires the requests and the contents of their sources.
  const uint32_t posted = load_acquire(queue.pair->posted);
  queue.seen = posted;
  if (posted == queue.taken || queue.ended) {
    // A GPU's request lands 0.9 us before its count. If the line is here by then, that saves 0.4
    // us.
    __builtin_prefetch(&queue.pair->ring[queue.taken % kSlots]);
    return false;
  }
  uint32_t count = 0;
  for (; count < kBatch && queue.taken != posted; ++count) {
    if (queue.taken - queue.completed >= options_.depth) break;
    const NetworkRequest& request = queue.pair->ring[queue.taken % kSlots];
    PostedRequest checked{.peer = queue.peer,
                          .queue = queue.number,
                          .turn = queue.taken,
                          .kind = request.kind,
                          .target = {.key = request.target_key, .offset = request.target},
                          .addend = request.addend};
    if (!admit(queue, request, checked)) return true;
    if (!transport_->post(checked)) break;
    ++queue.taken;
  }
  return count != 0;
}

bool Proxy::admit(Queue& queue, const NetworkRequest& request, PostedRequest& posted) {
  const uint32_t region = region_of_key(request.target_key);
  const auto refuse_with = [&](NetworkCheck check, uint64_t expected, uint64_t seen) {
    refuse(queue, check, {.region = region, .expected = expected, .seen = seen});
    return false;
  };
  switch (request.kind) {
    case NetworkRequest::Kind::signal:
      return true;
    case NetworkRequest::Kind::put_inline:
      if (request.inline_bytes > kNetworkInlineMax)
        return refuse_with(NetworkCheck::size, kNetworkInlineMax, request.inline_bytes);
      posted.pieces[0] = std::as_bytes(std::span(request.bytes, request.inline_bytes));
      return true;
    case NetworkRequest::Kind::put: {
      if (request.pieces == 0 || request.pieces > 2)
        return refuse_with(NetworkCheck::request, 2, request.pieces);
      uint64_t bytes = 0;
      for (uint32_t piece = 0; piece < request.pieces; ++piece)
        bytes += request.sources[piece].bytes;
      if (bytes > kNetworkPutMax) return refuse_with(NetworkCheck::size, kNetworkPutMax, bytes);
      for (uint32_t piece = 0; piece < request.pieces; ++piece)
        if (!admit_source(queue, request.sources[piece], posted.pieces[piece])) return false;
      return true;
    }
  }
  return refuse_with(NetworkCheck::request, 2, static_cast<uint64_t>(request.kind));
}

bool Proxy::admit_source(Queue& queue, const NetworkSource& source,
                         std::span<const std::byte>& piece) {
  const uint32_t region = region_of_key(source.key);
  const std::span<std::byte>* const memory = sources_.find(source.key);
  if (memory == nullptr) {
    refuse(queue, NetworkCheck::source_key,
           {.region = region, .expected = sources_.key_of(region), .seen = source.key});
    return false;
  }
  const uint64_t offset =
      reinterpret_cast<uintptr_t>(source.from) - reinterpret_cast<uintptr_t>(memory->data());
  if (!lies_within(offset, source.bytes, memory->size())) {
    refuse(queue, NetworkCheck::source_range,
           {.region = region, .expected = memory->size(), .seen = offset + source.bytes});
    return false;
  }
  piece = memory->subspan(offset, source.bytes);
  return true;
}

/// As publish_refusal(), for the host.
void Proxy::refuse(Queue& queue, NetworkCheck check, const NetworkRefusal& refusal) {
  if (queue.ended) return;
  queue.ended = true;
  queue.pair->refusal = refusal;
  // Publishes the refusal.
  store_release(queue.pair->refused, static_cast<uint32_t>(check));
  // Publishes it to the waits that this ends. A loss or `cancel` stays.
  for (AbortWord expected : {kNoAbort, kLeft})
    if (__atomic_compare_exchange_n(refused_, &expected, kRefused, false, __ATOMIC_RELEASE,
                                    __ATOMIC_RELAXED))
      break;
}

void Proxy::completed(uint32_t peer, uint32_t number, uint32_t turn) {
  Queue& queue = queue_of(peer, number);
  queue.done |= uint64_t{1} << turn % kSlots;
  while ((queue.done >> queue.completed % kSlots & 1) != 0) {
    queue.done &= ~(uint64_t{1} << queue.completed % kSlots);
    ++queue.completed;
  }
  if (queue.changed) return;
  queue.changed = true;
  changed_.push_back(&queue);
}

void Proxy::publish() {
  for (Queue* const queue : changed_) {
    queue->changed = false;
    // Releases the reads of sources and requests.
    store_release(queue->pair->completed, queue->completed);
  }
  changed_.clear();
}

void Proxy::refused(uint32_t peer, uint32_t number, NetworkCheck check,
                    const NetworkRefusal& refusal) {
  refuse(queue_of(peer, number), check, refusal);
}

void Proxy::ask_settled(Queue& queue) {
  if (queue.ended || queue.taken == queue.settled || queue.taken == queue.asked) return;
  if (queue.taken != load_acquire(queue.pair->posted)) return;
  // The peer counts puts alone, and a signal may travel by another path than this question.
  if (queue.completed != queue.taken) return;
  // The answer may come at once.
  const uint32_t before = std::exchange(queue.asked, queue.taken);
  if (!transport_->settle(queue.peer, queue.number, queue.taken)) queue.asked = before;
}

void Proxy::settled(uint32_t peer, uint32_t number, uint32_t turn) {
  Queue& queue = queue_of(peer, number);
  // A peer may answer what it was not asked.
  if (turn != queue.asked || queue.ended) return;
  queue.settled = turn;
  // Releases what has landed to a host that waits for it.
  store_release(queue.pair->settled, turn);
}

void Proxy::poll_peers() {
  const TimePoint now = Clock::now();
  for (Queue& queue : queues_) {
    const bool idle = queue.settled == load_acquire(queue.pair->posted);
    if (const auto how = has_gone(gone_[queue.peer])) {
      // Once for all of its queues, and again where a loss follows its goodbye.
      if (queue.gone != *how) transport_->drop(queue.peer, *how == kLeft);
      queue.gone = *how;
      if (!idle && !queue.ended) forget(queue);
      continue;
    }
    if (idle || queue.ended) continue;
    // Silence counts for completed requests, too: they may have gone no further than this system.
    const auto silent = transport_->silent_for(queue.peer);
    if (silent >= options_.grace) {
      give_up(queue, fmt::format("it has taken nothing for {:.1f} s",
                                 std::chrono::duration<double>(silent).count()));
      continue;
    }
    const bool waits = queue.completed != load_acquire(queue.pair->posted) || settling_ != 0;
    const auto broken = waits ? transport_->broken(queue.peer) : std::nullopt;
    if (!broken) {
      queue.held_since.reset();
    } else if (!queue.held_since) {
      queue.held_since = now;
    } else if (now - *queue.held_since >= options_.grace) {
      give_up(queue, *broken);
    }
  }
}

void Proxy::give_up(Queue& queue, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    unreachable_.try_emplace(queue.peer, Unreachable{.cause = why, .since = Clock::now()});
  }
  refuse(queue, NetworkCheck::connection,
         {.region = 0, .expected = load_acquire(queue.pair->posted), .seen = queue.completed});
  // None of these requests may take effect later: their sources are the caller's again.
  transport_->drop(queue.peer, false);
}

/// Drops a queue's requests: nobody is there to notice.
void Proxy::forget(Queue& queue) {
  queue.taken = queue.completed = queue.asked = queue.settled = load_acquire(queue.pair->posted);
  queue.done = 0;
  store_release(queue.pair->completed, queue.completed);
  store_release(queue.pair->settled, queue.settled);
}

bool Proxy::nothing_new() const {
  return std::ranges::all_of(queues_, [](const Queue& queue) {
    // As ring_doorbell() fences its store of `posted` from its look at `asleep`.
    return queue.ended || __atomic_load_n(&queue.pair->posted, __ATOMIC_SEQ_CST) == queue.seen;
  });
}

bool Proxy::under_way() const {
  return settling_ != 0 || std::ranges::any_of(queues_, [](const Queue& queue) {
           return !queue.ended && load_acquire(queue.pair->posted) != queue.completed;
         });
}

void Proxy::sleep() {
  // Before the looks at `posted` in the one order of these accesses and of kernels' fences.
  __atomic_store_n(&doorbell_.asleep, uint32_t{1}, __ATOMIC_SEQ_CST);
  // Requests that wait for a connection, or for news of a peer, need looks at the clock.
  const bool waits = under_way();
  if (nothing_new() && !has_tasks_ && !stops_) {
    std::chrono::nanoseconds time = kLongSleep;
    if (!options_.kernels_ring) {
      time = nap_ = std::min<std::chrono::nanoseconds>(
          std::max<std::chrono::nanoseconds>(nap_, kFirstNap) * 2, options_.nap_max);
    }
    if (waits) time = std::min<std::chrono::nanoseconds>(time, kSleepUnderWay);
    sleeps_.fetch_add(1, std::memory_order_relaxed);
    transport_->sleep(time, waker_.native());
  }
  store_release(doorbell_.asleep, 0);
  uint64_t rings = 0;
  (void)!::read(waker_.native(), &rings, sizeof rings);
}

bool Proxy::run_tasks() {
  std::vector<std::shared_ptr<Task>> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks = tasks_;
  }
  bool any = false;
  for (const auto& task : tasks) {
    if (!task->step()) continue;
    any = true;
    task->done = true;
    const std::lock_guard lock(mutex_);
    std::erase(tasks_, task);
    has_tasks_ = !tasks_.empty();
  }
  return any;
}

bool Proxy::run_task(const std::function<bool()>& step, const Wait& wait) {
  const auto task = std::make_shared<Task>();
  task->step = step;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw InternalError("the network's proxy has failed: " + *failure_);
    tasks_.push_back(task);
    has_tasks_ = true;
  }
  wake();
  const auto withdraw = [&] {
    const std::lock_guard lock(mutex_);
    std::erase(tasks_, task);
    has_tasks_ = !tasks_.empty();
  };
  try {
    if (wait([&] { return task->done.load(); })) return true;
  } catch (...) {
    withdraw();
    throw;
  }
  withdraw();
  return task->done.load();
}

void Proxy::open_region(const std::function<void()>& open, const Wait& wait) {
  const auto failure = std::make_shared<std::exception_ptr>();
  const auto attempt = [=] {
    try {
      open();
    } catch (...) {
      *failure = std::current_exception();
    }
    return true;
  };
  if (!run_task(attempt, wait)) throw InternalError("the network's proxy does not answer");
  if (*failure) std::rethrow_exception(*failure);
}

void Proxy::register_memory(MemoryKey key, std::span<std::byte> memory, const Wait& wait) {
  open_region(
      [=, this] {
        transport_->register_memory(key, memory);
        sources_.open(key, memory);
      },
      wait);
}

void Proxy::register_gpu_memory(MemoryKey key, std::span<std::byte> memory, const Wait& wait) {
  open_region(
      [=, this] {
        transport_->register_gpu_memory(key, memory);
        of_gpu_[region_of_key(key)] = key;
      },
      wait);
}

bool Proxy::uses(const Queue& queue, uint32_t region) const {
  for (uint32_t turn = queue.completed; turn != queue.taken; ++turn) {
    const NetworkRequest& request = queue.pair->ring[turn % kSlots];
    if ((queue.done >> turn % kSlots & 1) != 0 || request.kind != NetworkRequest::Kind::put)
      continue;
    for (uint32_t piece = 0; piece < request.pieces && piece < 2; ++piece)
      if (region_of_key(request.sources[piece].key) == region) return true;
  }
  return false;
}

std::optional<uint32_t> Proxy::deregister(MemoryKey key, const Wait& wait) {
  const uint32_t region = region_of_key(key);
  const auto user = std::make_shared<std::atomic<int64_t>>(-1);
  const auto close = [=, this] {
    if (sources_.key_of(region) == key) {
      sources_.close(region);
      transport_->withdraw(region);
    } else if (of_gpu_[region] == key) {
      of_gpu_[region] = 0;
      transport_->withdraw(region);
    }
    const auto busy = std::ranges::find_if(queues_, [&](const Queue& queue) {
      // A path that may return still sends what it was to send.
      return uses(queue, region) &&
             (!transport_->broken(queue.peer) || transport_->may_return(queue.peer));
    });
    const auto holder =
        busy == queues_.end() ? transport_->holder_of(region) : std::optional(busy->peer);
    *user = holder ? int64_t{*holder} : -1;
    return !holder;
  };
  if (run_task(close, wait)) return std::nullopt;
  const int64_t rank = *user;
  if (rank < 0) throw InternalError("the network's proxy does not answer");
  return static_cast<uint32_t>(rank);
}

void Proxy::retire(const std::vector<bool>& numbers, const std::function<void(bool others)>& at_end,
                   const Wait& wait) {
  const auto end = [=, this] {
    bool others = false;
    for (Queue& queue : queues_) {
      if (numbers[queue.number]) queue.retired = true;
      if (queue.ended) others |= !queue.retired;
      if (!queue.retired || queue.ended) continue;
      queue.ended = true;
      // Its requests need not settle any more.
      store_release(queue.pair->refused, static_cast<uint32_t>(NetworkCheck::queue));
    }
    at_end(others);
    return true;
  };
  if (!run_task(end, wait)) throw InternalError("the network's proxy does not answer");
}

std::shared_ptr<void> Proxy::settle() {
  ++settling_;
  wake();
  return {this, [](Proxy* self) { --self->settling_; }};
}

bool Proxy::is_settled() const {
  return std::ranges::all_of(queues_, [](const Queue& queue) {
    return load_acquire(queue.pair->refused) != 0 ||
           load_acquire(queue.pair->settled) == load_acquire(queue.pair->posted);
  });
}

void Proxy::stay_awake(bool awake) {
  stays_awake_ = awake && has_many_cores();
  wake();
}

std::optional<std::string> Proxy::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::string Proxy::cause(uint32_t peer) const {
  const std::lock_guard lock(mutex_);
  if (failure_) return "the thread of the network has failed: " + *failure_;
  const auto found = unreachable_.find(peer);
  return found == unreachable_.end() ? "" : found->second.cause;
}

std::optional<TimePoint> Proxy::unreachable_since(uint32_t peer) const {
  const std::lock_guard lock(mutex_);
  const auto found = unreachable_.find(peer);
  return found == unreachable_.end() ? std::nullopt : std::optional(found->second.since);
}

std::chrono::nanoseconds Proxy::processor_time() {
  clockid_t clock{};
  timespec time{};
  if (pthread_getcpuclockid(thread_.native_handle(), &clock) != 0 ||
      clock_gettime(clock, &time) != 0)
    return std::chrono::nanoseconds(0);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace tokenyard
