#include "collectives/interfaces/memory_pool.hpp"

#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

constexpr size_t smallest = 4096;
constexpr size_t huge_page = size_t{2} << 20;

std::byte* map(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw OsError("mmap", errno, std::strerror(errno));
  if (bytes >= huge_page)
    madvise(data, bytes, MADV_HUGEPAGE);  // a hint; refused where there are none
  return static_cast<std::byte*>(data);
}

}  // namespace

struct MemoryPool::Store {
  struct Idle {
    std::byte* data;
    size_t capacity;
  };
  size_t idle_bytes_max;
  size_t idle_bytes = 0;
  std::vector<Idle> idle;

  explicit Store(size_t idle_bytes_max) : idle_bytes_max(idle_bytes_max) {}
  ~Store() {
    for (const Idle& block : idle) munmap(block.data, block.capacity);
  }
  void give_back(std::byte* data, size_t capacity) {
    if (idle_bytes + capacity > idle_bytes_max) {
      munmap(data, capacity);
      return;
    }
    idle_bytes += capacity;
    idle.push_back({data, capacity});
  }
};

MemoryPool::Block::Block(std::shared_ptr<Store> store, std::byte* data, size_t capacity)
    : store_(std::move(store)), data_(data), capacity_(capacity) {}

MemoryPool::Block::Block(Block&& other) noexcept
    : store_(std::move(other.store_)),
      data_(std::exchange(other.data_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)) {}

MemoryPool::Block& MemoryPool::Block::operator=(Block&& other) noexcept {
  std::swap(store_, other.store_);
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

MemoryPool::Block::~Block() {
  if (data_ != nullptr) store_->give_back(data_, capacity_);
}

MemoryPool::MemoryPool(size_t idle_bytes_max) : store_(std::make_shared<Store>(idle_bytes_max)) {}

MemoryPool::Block MemoryPool::take(size_t bytes) {
  // Capacities are powers of two, so that a block can serve many sizes.
  const size_t capacity = std::bit_ceil(bytes < smallest ? smallest : bytes);
  for (size_t i = store_->idle.size(); i-- > 0;) {
    const Store::Idle found = store_->idle[i];
    if (found.capacity != capacity) continue;
    store_->idle.erase(store_->idle.begin() + static_cast<ptrdiff_t>(i));
    store_->idle_bytes -= capacity;
    return Block(store_, found.data, found.capacity);
  }
  return Block(store_, map(capacity), capacity);
}

}  // namespace tokenyard::collectives
