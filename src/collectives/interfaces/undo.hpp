/// What makes an operation's effects on its caller's memory all or nothing. Two ways: results of
/// small operations are staged, and copied to their place when the operation commits; large ones
/// are written in place, after the bytes that they replace have been saved.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/interfaces/memory_pool.hpp"

namespace tokenyard::collectives {

class Undo {
 public:
  explicit Undo(MemoryPool& pool) : pool_(pool) {}

  /// Up to so many bytes will be saved. Before anything is sent, so that memory that is refused
  /// refuses the whole operation.
  void reserve(size_t bytes);
  /// Does nothing where nothing was reserved: not all that is written is an input.
  void save(const void* at, size_t bytes);
  /// The same for who copies in parts, before it changes each: where to. Something was reserved.
  std::byte* place_to_save(const void* at, size_t bytes);
  /// Working memory until the operation ends.
  std::byte* scratch(size_t bytes);
  /// `result`, in working memory, goes to `place` when the operation commits.
  void stage(void* place, const std::byte* result, size_t bytes);

  void commit();
  void restore();

 private:
  struct Saved {
    void* at;
    size_t bytes;
  };
  struct Staged {
    void* place;
    const std::byte* result;
    size_t bytes;
  };
  void forget();

  MemoryPool& pool_;
  MemoryPool::Block log_;
  size_t log_bytes_ = 0;
  std::vector<Saved> saved_;
  std::vector<Staged> staged_;
  std::vector<MemoryPool::Block> blocks_;
};

}  // namespace tokenyard::collectives
