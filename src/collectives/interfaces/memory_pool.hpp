/// Work memory of operations, kept for later ones: touching fresh pages costs more than the copy
/// that fills them. Used under the engine's lock.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace tokenyard::collectives {

class MemoryPool {
  struct Store;

 public:
  /// A block that returns to its pool.
  class Block {
   public:
    Block() = default;
    Block(Block&& other) noexcept;
    Block& operator=(Block&& other) noexcept;
    ~Block();
    std::byte* data() const { return data_; }
    size_t capacity() const { return capacity_; }
    explicit operator bool() const { return data_ != nullptr; }

   private:
    friend class MemoryPool;
    Block(std::shared_ptr<Store> store, std::byte* data, size_t capacity);
    std::shared_ptr<Store> store_;
    std::byte* data_ = nullptr;
    size_t capacity_ = 0;
  };

  /// Frees a returned block if idle blocks would exceed `idle_bytes_max` in total.
  explicit MemoryPool(size_t idle_bytes_max);
  /// Returns a block of at least `bytes` bytes, aligned to cache lines, with arbitrary content.
  /// Throws OsError.
  Block take(size_t bytes);

 private:
  std::shared_ptr<Store> store_;
};

}  // namespace tokenyard::collectives
