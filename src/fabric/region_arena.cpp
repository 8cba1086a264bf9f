#include "fabric/region_arena.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "device/device_memory.hpp"
#include "fabric/sub_allocator.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

class RegionArena::Pool {
 public:
  struct Taken {
    uint64_t offset;
    bool unused;  ///< nothing that is still enqueued uses it
  };

  Pool(std::shared_ptr<Accelerator> accelerator, Region region, std::chrono::nanoseconds timeout)
      : accelerator_(std::move(accelerator)),
        region_(std::move(region)),
        timeout_(timeout),
        table_(*accelerator_, region_.bases.size() * sizeof(std::byte*),
               DeviceMemory::Kind::device),
        pieces_(region_.bytes) {
    accelerator_->copy(table_.as<std::byte*>(), region_.bases.data(),
                       region_.bases.size() * sizeof(std::byte*), Stream{});
    const Event copied = accelerator_->record(Stream{});
    const bool arrived = accelerator_->wait_until(accelerator_->now() + timeout_,
                                                  [&] { return accelerator_->done(copied); });
    accelerator_->free_event(copied);
    if (!arrived) throw InternalError("arena: the table of bases was not copied in time");
  }

  ~Pool() {
    for (Resting& resting : resting_) forget(resting);
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  Taken allocate(size_t bytes, Stream stream, ArenaEnd end) {
    std::optional<Taken> taken;
    // Locked a try at a time: other threads may drop pieces meanwhile.
    const auto try_once = [&] {
      const std::lock_guard lock(mutex_);
      taken = take(bytes, stream, end);
      return taken || bytes > pieces_.capacity() || resting_.empty();
    };
    if (!try_once()) accelerator_->wait_until(accelerator_->now() + timeout_, try_once);
    const std::lock_guard lock(mutex_);
    if (!taken) {
      throw InvalidArgument(
          "arena_bytes", fmt::format("room for {} more bytes", bytes),
          fmt::format("{} bytes, {} of them in use, at most {} free in one piece",
                      pieces_.capacity(), pieces_.used(), pieces_.largest_free()));
    }
    return *taken;
  }

  /// `streams`: those that may still use it.
  void free(uint64_t offset, const std::vector<Stream>& streams, ArenaEnd end) {
    const std::lock_guard lock(mutex_);
    release(offset, streams, end);
  }
  /// `streams`: those that may use what is given back.
  void keep_first(uint64_t offset, size_t bytes, const std::vector<Stream>& streams, ArenaEnd end) {
    const std::lock_guard lock(mutex_);
    if (const auto rest = pieces_.split(offset, bytes)) release(*rest, streams, end);
  }
  /// Returns where the rest begins, if there is one.
  std::optional<uint64_t> split(uint64_t offset, size_t bytes) {
    const std::lock_guard lock(mutex_);
    return pieces_.split(offset, bytes);
  }
  /// Returns where the kept part begins.
  uint64_t keep_last(uint64_t offset, size_t bytes, const std::vector<Stream>& streams,
                     ArenaEnd end) {
    const std::lock_guard lock(mutex_);
    const uint64_t size = pieces_.bytes_of(offset), kept = SubAllocator::rounded(bytes);
    if (kept >= size) return offset;
    const uint64_t last = *pieces_.split(offset, size - kept);
    release(offset, streams, end);
    return last;
  }

  size_t used() {
    const std::lock_guard lock(mutex_);
    reclaim();
    return pieces_.used();
  }
  size_t peak() {
    const std::lock_guard lock(mutex_);
    return pieces_.peak();
  }
  size_t capacity() const { return pieces_.capacity(); }
  const Region& region() const { return region_; }
  std::byte* const* table() const { return table_.as<std::byte*>(); }

 private:
  static constexpr size_t kRestingMost = 64;

  /// A piece that was freed while streams may still use it.
  struct Resting {
    uint64_t offset;
    std::vector<Stream> streams;
    std::vector<Event> events;  ///< one a stream
    ArenaEnd end;
  };

  /// With the lock held, as all below.
  void release(uint64_t offset, const std::vector<Stream>& streams, ArenaEnd end) {
    if (streams.empty()) return pieces_.free(offset);
    Resting resting{offset, streams, {}, end};
    for (const Stream stream : streams) resting.events.push_back(accelerator_->mark(stream));
    resting_.push_back(std::move(resting));
    // What rests is asked after when memory is wanted; before that it only must not become many.
    if (resting_.size() > kRestingMost) reclaim();
  }

  std::optional<Taken> take(size_t bytes, Stream stream, ArenaEnd end) {
    // Calls that repeat want what the one before had: then no event need be asked for. But what
    // stays is not strewn among what comes and goes.
    const auto exact = std::find_if(resting_.rbegin(), resting_.rend(), [&](const Resting& piece) {
      return piece.end == end && fit(piece, bytes, stream) == SubAllocator::rounded(bytes);
    });
    if (exact != resting_.rend()) {
      const uint64_t offset = exact->offset;
      forget(*exact);
      resting_.erase(std::next(exact).base());
      return Taken{offset, false};
    }
    reclaim();
    const bool upper = end == ArenaEnd::upper;
    if (const auto offset = upper ? pieces_.allocate_high(bytes) : pieces_.allocate(bytes))
      return Taken{*offset, true};
    // What this very stream freed comes before whatever it does next.
    const auto best = std::min_element(
        resting_.begin(), resting_.end(), [&](const Resting& left, const Resting& right) {
          return fit(left, bytes, stream) < fit(right, bytes, stream);
        });
    if (best == resting_.end() || fit(*best, bytes, stream) == UINT64_MAX) return std::nullopt;
    const uint64_t offset = best->offset, size = pieces_.bytes_of(offset);
    const uint64_t taken = SubAllocator::rounded(bytes);
    if (taken == size) {
      forget(*best);
      resting_.erase(best);
      return Taken{offset, false};
    }
    // The rest goes on resting under the same event.
    if (upper) return Taken{*pieces_.split(offset, size - taken), false};
    best->offset = *pieces_.split(offset, taken);
    return Taken{offset, false};
  }

  /// Size of a resting piece that `stream` may have at once; UINT64_MAX for one that it may not.
  uint64_t fit(const Resting& resting, size_t bytes, Stream stream) const {
    const bool same = resting.streams.size() == 1 && resting.streams[0].native == stream.native;
    const uint64_t size = pieces_.bytes_of(resting.offset);
    return same && size >= bytes ? size : UINT64_MAX;
  }

  void reclaim() {
    std::vector<uintptr_t> behind;  // Streams that have not got to what was freed earlier.
    const auto passed = [&](const Resting& resting) {
      for (size_t i = 0; i < resting.streams.size(); ++i) {
        const uintptr_t stream = resting.streams[i].native;
        if (std::find(behind.begin(), behind.end(), stream) != behind.end()) return false;
        if (accelerator_->done(resting.events[i])) continue;
        behind.push_back(stream);
        return false;
      }
      return true;
    };
    std::erase_if(resting_, [&](Resting& resting) {
      if (!passed(resting)) return false;
      pieces_.free(resting.offset);
      forget(resting);
      return true;
    });
  }

  void forget(Resting& resting) {
    for (const Event event : resting.events) accelerator_->free_event(event);
    resting.events.clear();
  }

  // In this order: the region is unmapped before the accelerator goes.
  std::shared_ptr<Accelerator> accelerator_;
  Region region_;
  std::chrono::nanoseconds timeout_;
  DeviceMemory table_;  ///< of bases
  std::mutex mutex_;    // Pieces may be dropped by any thread.
  SubAllocator pieces_;
  std::vector<Resting> resting_;
};

struct ArenaBlock::State {
  std::shared_ptr<RegionArena::Pool> pool;
  uint64_t offset = 0;
  size_t bytes = 0;
  std::vector<Stream> streams;
  ArenaEnd end = ArenaEnd::lower;
  bool unused = false;  ///< when it was allocated

  /// Whom a part must rest for that this piece has not used.
  std::vector<Stream> before() const { return unused ? std::vector<Stream>{} : streams; }
};

ArenaBlock::ArenaBlock(std::unique_ptr<State> state) : state_(std::move(state)) {}
ArenaBlock::ArenaBlock() = default;
ArenaBlock::ArenaBlock(ArenaBlock&& other) noexcept = default;

ArenaBlock& ArenaBlock::operator=(ArenaBlock&& other) noexcept {
  if (this != &other) {
    ArenaBlock dropped(std::move(*this));
    state_ = std::move(other.state_);
  }
  return *this;
}

ArenaBlock::~ArenaBlock() {
  if (!state_) return;
  try {
    state_->pool->free(state_->offset, state_->streams, state_->end);
  } catch (const Error&) {
    // A destructor cannot report it. The piece stays taken, which harms nobody: the accelerator
    // that failed here fails the next call too.
  }
}

std::byte* ArenaBlock::data() const {
  return state_ ? state_->pool->region().base + state_->offset : nullptr;
}
size_t ArenaBlock::bytes() const {
  return state_ ? state_->bytes : 0;
}
uint64_t ArenaBlock::offset() const {
  return state_ ? state_->offset : 0;
}

void ArenaBlock::trim(size_t bytes) {
  if (!state_ || bytes >= state_->bytes) return;
  state_->pool->keep_first(state_->offset, bytes, state_->streams, state_->end);
  state_->bytes = bytes;
}

ArenaBlock ArenaBlock::split(size_t bytes) {
  if (!state_ || bytes >= state_->bytes) return {};
  const auto rest = state_->pool->split(state_->offset, bytes);
  if (!rest) return {};
  auto of_rest = std::make_unique<State>(*state_);
  const size_t kept = *rest - state_->offset;
  of_rest->offset = *rest;
  of_rest->bytes = state_->bytes - kept;
  state_->bytes = kept;
  return ArenaBlock(std::move(of_rest));
}

void ArenaBlock::keep_first(size_t bytes) {
  if (!state_ || bytes >= state_->bytes) return;
  state_->pool->keep_first(state_->offset, bytes, state_->before(), state_->end);
  state_->bytes = bytes;
}

void ArenaBlock::keep_last(size_t bytes) {
  if (!state_ || bytes >= state_->bytes) return;
  state_->offset = state_->pool->keep_last(state_->offset, bytes, state_->before(), state_->end);
  state_->bytes = bytes;
}

void ArenaBlock::quarantine() {
  state_.reset();
}

void ArenaBlock::record_stream(Stream stream) {
  if (!state_) return;
  const bool known = std::any_of(state_->streams.begin(), state_->streams.end(),
                                 [&](Stream seen) { return seen.native == stream.native; });
  if (!known) state_->streams.push_back(stream);
}

ArenaBlock::operator bool() const {
  return state_ != nullptr;
}

RegionArena::RegionArena(std::shared_ptr<Accelerator> accelerator, Region region,
                         std::chrono::nanoseconds timeout)
    : pool_(std::make_shared<Pool>(std::move(accelerator), std::move(region), timeout)) {}
RegionArena::~RegionArena() = default;

ArenaBlock RegionArena::allocate(size_t bytes, Stream stream, ArenaEnd end) {
  const Pool::Taken taken = pool_->allocate(bytes, stream, end);
  return ArenaBlock(std::make_unique<ArenaBlock::State>(ArenaBlock::State{
      pool_, taken.offset, bytes, std::vector<Stream>{stream}, end, taken.unused}));
}

size_t RegionArena::capacity() const {
  return pool_->capacity();
}
size_t RegionArena::used() const {
  return pool_->used();
}
size_t RegionArena::peak() const {
  return pool_->peak();
}
std::byte* RegionArena::base() const {
  return pool_->region().base;
}
PeerArray<std::byte> RegionArena::bases() const {
  return {pool_->table(), pool_->region().rank};
}
std::byte* RegionArena::base_of(uint32_t rank) const {
  return pool_->region().bases.at(rank);
}

}  // namespace tokenyard
