#include "fabric/arena.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "device/device_memory.hpp"
#include "device/owned_event.hpp"
#include "fabric/arena_full.hpp"
#include "fabric/sub_allocator.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

class Arena::Pool {
 public:
  struct Taken {
    uint64_t offset;
    bool unused;  ///< no enqueued work still uses it
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
    const OwnedEvent copied(*accelerator_, accelerator_->record(Stream{}));
    const bool arrived = accelerator_->wait_until(accelerator_->now() + timeout_,
                                                  [&] { return accelerator_->done(copied.get()); });
    if (!arrived) throw InternalError("arena: the table of bases was not copied in time");
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  Taken allocate(size_t bytes, Stream stream, ArenaEnd end) {
    std::optional<Taken> taken;
    // Locks per attempt, so that other threads can free blocks in between.
    const auto try_once = [&] {
      const std::lock_guard lock(mutex_);
      taken = take(bytes, stream, end);
      return taken || bytes > pieces_.capacity() || resting_.empty();
    };
    if (!try_once()) accelerator_->wait_until(accelerator_->now() + timeout_, try_once);
    const std::lock_guard lock(mutex_);
    if (!taken) {
      throw ArenaFull(bytes, pieces_.largest_free(),
                      fmt::format("{} bytes, {} of them in use, at most {} free in one piece",
                                  pieces_.capacity(), pieces_.used(), pieces_.largest_free()));
    }
    return *taken;
  }

  /// `streams`: those that may still use the block.
  void free(uint64_t offset, const std::vector<Stream>& streams, ArenaEnd end) {
    const std::lock_guard lock(mutex_);
    release(offset, streams, end);
  }
  /// `streams`: those that may still use the freed part.
  void keep_first(uint64_t offset, size_t bytes, const std::vector<Stream>& streams, ArenaEnd end) {
    const std::lock_guard lock(mutex_);
    if (const auto rest = pieces_.split(offset, bytes)) release(*rest, streams, end);
  }
  /// Returns the offset of the rest, if there is one.
  std::optional<uint64_t> split(uint64_t offset, size_t bytes) {
    const std::lock_guard lock(mutex_);
    return pieces_.split(offset, bytes);
  }
  /// Returns the offset of the kept part.
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

  /// A freed block that streams may still use.
  struct Resting {
    uint64_t offset;
    std::vector<Stream> streams;
    std::vector<OwnedEvent> events;  ///< one per stream
    ArenaEnd end;
  };

  // The functions below need the lock held.

  void release(uint64_t offset, const std::vector<Stream>& streams, ArenaEnd end) {
    if (streams.empty()) return pieces_.free(offset);
    Resting resting{offset, streams, {}, end};
    for (const Stream stream : streams)
      resting.events.emplace_back(*accelerator_, accelerator_->mark(stream));
    resting_.push_back(std::move(resting));
    // Events are queried when memory is needed; until then, only the number of blocks is limited.
    if (resting_.size() > kRestingMost) reclaim();
  }

  std::optional<Taken> take(size_t bytes, Stream stream, ArenaEnd end) {
    // Repeated calls want a block of the size that the previous call freed on this stream; an exact
    // fit saves querying events. Only at the same end: long-lived blocks must not be scattered
    // among short-lived ones.
    const auto exact = std::find_if(resting_.rbegin(), resting_.rend(), [&](const Resting& piece) {
      return piece.end == end && fit(piece, bytes, stream) == SubAllocator::rounded(bytes);
    });
    if (exact != resting_.rend()) {
      const uint64_t offset = exact->offset;
      resting_.erase(std::next(exact).base());
      return Taken{offset, false};
    }
    reclaim();
    const bool upper = end == ArenaEnd::upper;
    if (const auto offset = upper ? pieces_.allocate_high(bytes) : pieces_.allocate(bytes))
      return Taken{*offset, true};
    // The stream may reuse a block that it freed itself: its next work runs after the last use.
    const auto best = std::min_element(
        resting_.begin(), resting_.end(), [&](const Resting& left, const Resting& right) {
          return fit(left, bytes, stream) < fit(right, bytes, stream);
        });
    if (best == resting_.end() || fit(*best, bytes, stream) == UINT64_MAX) return std::nullopt;
    const uint64_t offset = best->offset, size = pieces_.bytes_of(offset);
    const uint64_t taken = SubAllocator::rounded(bytes);
    if (taken == size) {
      resting_.erase(best);
      return Taken{offset, false};
    }
    // The rest keeps resting, under the same event.
    if (upper) return Taken{*pieces_.split(offset, size - taken), false};
    best->offset = *pieces_.split(offset, taken);
    return Taken{offset, false};
  }

  /// Returns the size of a resting block if `stream` may reuse it at once, else UINT64_MAX.
  uint64_t fit(const Resting& resting, size_t bytes, Stream stream) const {
    const bool same = resting.streams.size() == 1 && resting.streams[0].native == stream.native;
    const uint64_t size = pieces_.bytes_of(resting.offset);
    return same && size >= bytes ? size : UINT64_MAX;
  }

  void reclaim() {
    std::vector<uintptr_t> behind;  // Streams that have not reached an earlier free.
    const auto passed = [&](const Resting& resting) {
      for (size_t i = 0; i < resting.streams.size(); ++i) {
        const uintptr_t stream = resting.streams[i].native;
        if (std::find(behind.begin(), behind.end(), stream) != behind.end()) return false;
        if (accelerator_->done(resting.events[i].get())) continue;
        behind.push_back(stream);
        return false;
      }
      return true;
    };
    std::erase_if(resting_, [&](const Resting& resting) {
      if (!passed(resting)) return false;
      pieces_.free(resting.offset);
      return true;
    });
  }

  // In this order, so that the region is unmapped before the accelerator is destroyed.
  std::shared_ptr<Accelerator> accelerator_;
  Region region_;
  std::chrono::nanoseconds timeout_;
  DeviceMemory table_;  ///< [ranks] bases
  std::mutex mutex_;    // Any thread may free a block.
  SubAllocator pieces_;
  std::vector<Resting> resting_;
};

struct ArenaBlock::State {
  std::shared_ptr<Arena::Pool> pool;
  uint64_t offset = 0;
  size_t bytes = 0;
  std::vector<Stream> streams;
  ArenaEnd end = ArenaEnd::lower;
  bool unused = false;  ///< no enqueued work used the memory when it was allocated

  /// Returns the streams that a part must wait for which this block has not used.
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
  } catch (const OsError&) {
    // A destructor cannot report it. The block stays allocated, which is harmless: an accelerator
    // that fails here fails the next call too. A stream that has been freed ends the process, as it
    // may on a GPU.
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

Arena::Arena(std::shared_ptr<Accelerator> accelerator, Region region,
             std::chrono::nanoseconds timeout)
    : pool_(std::make_shared<Pool>(std::move(accelerator), std::move(region), timeout)) {}
Arena::~Arena() = default;

ArenaBlock Arena::allocate(size_t bytes, Stream stream, ArenaEnd end) {
  const Pool::Taken taken = pool_->allocate(bytes, stream, end);
  return ArenaBlock(std::make_unique<ArenaBlock::State>(ArenaBlock::State{
      pool_, taken.offset, bytes, std::vector<Stream>{stream}, end, taken.unused}));
}

size_t Arena::capacity() const {
  return pool_->capacity();
}
size_t Arena::used() const {
  return pool_->used();
}
size_t Arena::peak() const {
  return pool_->peak();
}
std::byte* Arena::base() const {
  return pool_->region().base;
}
PeerArray<std::byte> Arena::bases() const {
  return {pool_->table(), pool_->region().rank};
}
std::byte* Arena::base_of(uint32_t rank) const {
  return pool_->region().bases.at(rank);
}

}  // namespace tokenyard
