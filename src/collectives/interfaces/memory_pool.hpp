/// Working memory of operations, kept for the next ones: fresh pages cost more than the copy that
/// fills them. Used under the engine's lock.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace tokenyard::collectives {

class MemoryPool {
  struct Store;

 public:
  /// A block that goes back to its pool.
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

  /// Frees rather than keeps what would make the idle blocks more than this in all.
  explicit MemoryPool(size_t idle_bytes_max);
  /// At least so many bytes, aligned to cache lines; with what they held before. Throws OsError.
  Block take(size_t bytes);

 private:
  std::shared_ptr<Store> store_;
};

}  // namespace tokenyard::collectives
