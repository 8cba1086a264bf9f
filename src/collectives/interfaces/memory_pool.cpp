#include "collectives/interfaces/memory_pool.hpp"

#include <sys/mman.h>

#include <bit>
#include <utility>

namespace tokenyard::collectives {

namespace {

constexpr size_t smallest = 4096;
constexpr size_t huge_page = size_t{2} << 20;

Mapping map(size_t bytes) {
  Mapping made = Mapping::counted(bytes);
  // A hint; refused where there are none.
  if (bytes >= huge_page) madvise(made.base(), bytes, MADV_HUGEPAGE);
  return made;
}

}  // namespace

struct MemoryPool::Store {
  size_t idle_bytes_max;
  size_t idle_bytes = 0;
  std::vector<Mapping> idle;

  explicit Store(size_t idle_bytes_max) : idle_bytes_max(idle_bytes_max) {}
  void give_back(Mapping memory) {
    if (idle_bytes + memory.bytes() > idle_bytes_max) return;
    idle_bytes += memory.bytes();
    idle.push_back(std::move(memory));
  }
};

MemoryPool::Block::Block(std::shared_ptr<Store> store, Mapping memory)
    : store_(std::move(store)), memory_(std::move(memory)) {}

MemoryPool::Block& MemoryPool::Block::operator=(Block&& other) noexcept {
  std::swap(store_, other.store_);
  std::swap(memory_, other.memory_);
  return *this;
}

MemoryPool::Block::~Block() {
  if (memory_) store_->give_back(std::move(memory_));
}

MemoryPool::MemoryPool(size_t idle_bytes_max) : store_(std::make_shared<Store>(idle_bytes_max)) {}

MemoryPool::Block MemoryPool::take(size_t bytes) {
  // Capacities are powers of two, so that a block can serve many sizes.
  const size_t capacity = std::bit_ceil(bytes < smallest ? smallest : bytes);
  for (size_t i = store_->idle.size(); i-- > 0;) {
    if (store_->idle[i].bytes() != capacity) continue;
    Mapping found = std::move(store_->idle[i]);
    store_->idle.erase(store_->idle.begin() + static_cast<ptrdiff_t>(i));
    store_->idle_bytes -= capacity;
    return Block(store_, std::move(found));
  }
  return Block(store_, map(capacity));
}

}  // namespace tokenyard::collectives
