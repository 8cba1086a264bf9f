/// Vector clocks: the events that are known to have happened before a thread's next one.
///
/// Here a slot is an index into clocks, one per thread or agent. An epoch is a span of its events:
/// a thread's ends at its next release; an agent's is a phase of loads or a group of stores. Events
/// (slot, epoch) happened before a thread's next one if that thread's clock has at least this epoch
/// at that slot. The slots and epochs of ranks, rows and calls are other things.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace tokenyard::simulation {

/// The index of a clock entry: a simulated thread, or an agent that copies for it. Reused only by
/// an owner that is ordered after everything that its former owner did.
using Slot = uint32_t;
/// Counts a slot's releases, from 1. Epoch 0 is before everything.
using Epoch = uint32_t;

/// The last known epoch of every slot. Copies share their entries until one of them changes: after
/// a barrier all threads of a block share one array, and joining equal clocks costs a comparison of
/// pointers.
class Clock {
 public:
  Epoch of(Slot slot) const {
    return entries_ != nullptr && slot < entries_->size() ? (*entries_)[slot] : 0;
  }
  void raise(Slot slot, Epoch epoch) {
    if (of(slot) >= epoch) return;
    std::vector<Epoch>& mine = own(slot + 1);
    mine[slot] = epoch;
  }
  /// Raises every slot to its epoch in `other`, if that is later. Returns whether anything changed.
  bool join(const Clock& other) {
    if (other.entries_ == entries_ || other.entries_ == nullptr) return false;
    if (entries_ == nullptr) {
      entries_ = other.entries_;
      return true;
    }
    const std::vector<Epoch>& theirs = *other.entries_;
    // Unshared entries are raised in one pass; sharing the other clock's is not worth a second.
    if (entries_.use_count() == 1 && entries_->size() >= theirs.size())
      return take_later(*entries_, theirs);
    if (covers(other)) return false;
    if (other.covers(*this)) {
      entries_ = other.entries_;
      return true;
    }
    take_later(own(theirs.size()), theirs);
    return true;
  }
  bool covers(const Clock& other) const {
    if (other.entries_ == entries_ || other.entries_ == nullptr) return true;
    const std::vector<Epoch>& theirs = *other.entries_;
    const size_t mine = entries_ == nullptr ? 0 : entries_->size();
    const size_t both = mine < theirs.size() ? mine : theirs.size();
    // No early exit, so that the compiler can vectorise the loop.
    bool behind = false;
    for (size_t slot = 0; slot < both; ++slot) behind |= (*entries_)[slot] < theirs[slot];
    for (size_t slot = both; slot < theirs.size(); ++slot) behind |= theirs[slot] != 0;
    return !behind;
  }

 private:
  /// Requires that `mine` is at least as long as `theirs`. Returns whether anything changed.
  static bool take_later(std::vector<Epoch>& mine, const std::vector<Epoch>& theirs) {
    bool changed = false;
    for (size_t slot = 0; slot < theirs.size(); ++slot) {
      changed |= mine[slot] < theirs[slot];
      mine[slot] = mine[slot] < theirs[slot] ? theirs[slot] : mine[slot];
    }
    return changed;
  }
  /// Returns this clock's own, unshared entries, at least `size` of them.
  std::vector<Epoch>& own(size_t size) {
    if (entries_ == nullptr) {
      entries_ = std::make_shared<std::vector<Epoch>>(size);
    } else if (entries_.use_count() > 1) {
      auto copy = std::make_shared<std::vector<Epoch>>();
      copy->reserve(size > entries_->size() ? size + size / 4 : entries_->size());
      *copy = *entries_;
      entries_ = std::move(copy);
    }
    if (entries_->size() < size) entries_->resize(size);
    return *entries_;
  }

  std::shared_ptr<std::vector<Epoch>> entries_;
};

}  // namespace tokenyard::simulation
