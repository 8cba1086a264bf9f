#include "fabric/region_arena.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "fabric/sub_allocator.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

class RegionArena::Pool {
 public:
  Pool(std::shared_ptr<Accelerator> accelerator, Region region, std::chrono::nanoseconds patience)
      : accelerator_(std::move(accelerator)),
        region_(std::move(region)),
        patience_(patience),
        pieces_(region_.bytes) {
    const size_t bytes = region_.bases.size() * sizeof(std::byte*);
    table_ = static_cast<std::byte**>(accelerator_->allocate(std::max<size_t>(bytes, 1)));
    accelerator_->copy(table_, region_.bases.data(), bytes, Stream{});
    const Event copied = accelerator_->record(Stream{});
    const bool arrived = accelerator_->wait_until(accelerator_->now() + patience_,
                                                  [&] { return accelerator_->done(copied); });
    accelerator_->free_event(copied);
    if (!arrived) throw InternalError("arena: the table of bases was not copied in time");
  }

  ~Pool() {
    for (Resting& resting : resting_) forget(resting);
    accelerator_->free(table_);
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  uint64_t allocate(size_t bytes, Stream stream) {
    std::optional<uint64_t> offset;
    // Locked a try at a time: other threads may drop pieces meanwhile.
    const auto try_once = [&] {
      const std::lock_guard lock(mutex_);
      offset = take(bytes, stream);
      return offset || bytes > pieces_.capacity() || resting_.empty();
    };
    if (!try_once()) accelerator_->wait_until(accelerator_->now() + patience_, try_once);
    const std::lock_guard lock(mutex_);
    if (!offset) {
      throw InvalidArgument(
          "arena_bytes", fmt::format("room for {} more bytes", bytes),
          fmt::format("{} bytes, {} of them in use, at most {} free in one piece",
                      pieces_.capacity(), pieces_.used(), pieces_.largest_free()));
    }
    return *offset;
  }

  void free(uint64_t offset, const std::vector<Stream>& streams) {
    const std::lock_guard lock(mutex_);
    Resting resting{offset, streams, {}};
    for (const Stream stream : streams) resting.events.push_back(accelerator_->mark(stream));
    resting_.push_back(std::move(resting));
    // What rests is asked after when memory is wanted; before that it only must not become many.
    if (resting_.size() > kRestingMost) reclaim();
  }

  void trim(uint64_t offset, size_t bytes, const std::vector<Stream>& streams) {
    std::optional<uint64_t> rest;
    {
      const std::lock_guard lock(mutex_);
      rest = pieces_.split(offset, bytes);
    }
    if (rest) free(*rest, streams);
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
  std::byte* const* table() const { return table_; }

 private:
  static constexpr size_t kRestingMost = 64;

  /// A piece that was freed while streams may still use it.
  struct Resting {
    uint64_t offset;
    std::vector<Stream> streams;
    std::vector<Event> events;  ///< one a stream
  };

  std::optional<uint64_t> take(size_t bytes, Stream stream) {
    // Calls that repeat want what the one before had: then no event need be asked for.
    const auto exact = std::find_if(resting_.rbegin(), resting_.rend(), [&](const Resting& piece) {
      return fit(piece, bytes, stream) == SubAllocator::rounded(bytes);
    });
    if (exact != resting_.rend()) {
      const uint64_t offset = exact->offset;
      forget(*exact);
      resting_.erase(std::next(exact).base());
      return offset;
    }
    reclaim();
    if (const auto offset = pieces_.allocate(bytes)) return offset;
    // What this very stream freed comes before whatever it does next.
    const auto best = std::min_element(
        resting_.begin(), resting_.end(), [&](const Resting& left, const Resting& right) {
          return fit(left, bytes, stream) < fit(right, bytes, stream);
        });
    if (best == resting_.end() || fit(*best, bytes, stream) == UINT64_MAX) return std::nullopt;
    const uint64_t offset = best->offset;
    if (const auto rest = pieces_.split(offset, bytes)) {
      best->offset = *rest;  // The rest goes on resting under the same event.
    } else {
      forget(*best);
      resting_.erase(best);
    }
    return offset;
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
  std::chrono::nanoseconds patience_;
  std::mutex mutex_;  // Pieces may be dropped by any thread.
  SubAllocator pieces_;
  std::vector<Resting> resting_;
  std::byte** table_ = nullptr;
};

struct ArenaBlock::State {
  std::shared_ptr<RegionArena::Pool> pool;
  uint64_t offset = 0;
  size_t bytes = 0;
  std::vector<Stream> streams;
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
    state_->pool->free(state_->offset, state_->streams);
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
  state_->pool->trim(state_->offset, bytes, state_->streams);
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
                         std::chrono::nanoseconds patience)
    : pool_(std::make_shared<Pool>(std::move(accelerator), std::move(region), patience)) {}
RegionArena::~RegionArena() = default;

ArenaBlock RegionArena::allocate(size_t bytes, Stream stream) {
  const uint64_t offset = pool_->allocate(bytes, stream);
  return ArenaBlock(std::make_unique<ArenaBlock::State>(
      ArenaBlock::State{pool_, offset, bytes, std::vector<Stream>{stream}}));
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
