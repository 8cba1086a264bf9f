/// Makes an operation's effects on its caller's memory all-or-nothing. Small results are staged and
/// copied to their place at the commit; large results are written in place after the bytes they
/// replace have been saved.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/interfaces/memory_pool.hpp"

namespace tokenyard::collectives {

class Undo {
 public:
  explicit Undo(MemoryPool& pool) : pool_(pool) {}

  /// Reserves memory to save up to `bytes` bytes. Called before anything is sent, so that a lack of
  /// memory rejects the whole operation.
  void reserve(size_t bytes);
  /// Saves bytes before they are overwritten. Does nothing if nothing was reserved: not every
  /// output is an input.
  void save(const void* at, size_t bytes);
  /// As `save`, for callers that copy in parts: returns where to copy the bytes. Needs a
  /// reservation.
  std::byte* place_to_save(const void* at, size_t bytes);
  /// Returns work memory that lives until the operation ends.
  std::byte* scratch(size_t bytes);
  /// Copies `result`, in work memory, to `place` when the operation commits.
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
