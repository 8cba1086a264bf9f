/// Work memory of operations, kept for later ones: touching fresh pages costs more than the copy
/// that fills them. Used under the engine's lock.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/mapping.hpp"

namespace tokenyard::collectives {

class MemoryPool {
  struct Store;

 public:
  /// A block that returns to its pool.
  class Block {
   public:
    Block() = default;
    Block(Block&& other) noexcept = default;
    Block& operator=(Block&& other) noexcept;
    ~Block();
    std::byte* data() const { return memory_.base(); }
    size_t capacity() const { return memory_.bytes(); }
    explicit operator bool() const { return static_cast<bool>(memory_); }

   private:
    friend class MemoryPool;
    Block(std::shared_ptr<Store> store, Mapping memory);
    std::shared_ptr<Store> store_;
    Mapping memory_;
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
