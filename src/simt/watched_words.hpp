/// The words that a thread has looked at since it last began to wait. As long as they hold what it
/// saw, its condition would find nothing new, and it can be left alone: a look at a word costs a
/// hundredth of a switch to the fiber that wants to know.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tokenyard::simt {

class WatchedWords {
 public:
  /// `bytes`: 1, 2, 4, 8 or 16.
  void saw(const void* word, const void* value, uint32_t bytes) {
    if (count_ < kMost) looks_[count_].set(word, value, bytes);
    if (count_ <= kMost) ++count_;
  }
  /// It did more than look: whether it would find something new cannot be told from words.
  void acted() { count_ = kMost + 1; }
  void forget() { count_ = 0; }

  /// False also if there were more words than are kept, or none.
  bool hold_the_same() const {
    if (count_ == 0 || count_ > kMost) return false;
    for (uint32_t i = 0; i < count_; ++i)
      if (!looks_[i].holds_the_same()) return false;
    return true;
  }

 private:
  static constexpr uint32_t kMost = 6;  // A wait looks at three: its own, the failure, the alarm.

  struct Look {
    const void* word;
    uint32_t bytes;
    std::array<uint64_t, 2> seen;

    void set(const void* at, const void* value, uint32_t size) {
      word = at;
      bytes = size;
      by_size([&]<class T>(const T*, size_t i) {
        T now;
        std::memcpy(&now, static_cast<const T*>(value) + i, sizeof(T));
        seen[i] = now;
        return true;
      });
    }
    bool holds_the_same() const {
      return by_size([&]<class T>(const T* at, size_t i) {
        // Relaxed: whoever is woken looks again, with the order that it needs.
        return __atomic_load_n(at + i, __ATOMIC_RELAXED) == static_cast<T>(seen[i]);
      });
    }
    /// Sixteen bytes are two words: a half that changes is a change.
    template <class Body>
    bool by_size(Body body) const {
      switch (bytes) {
        case 1:
          return body(static_cast<const uint8_t*>(word), 0);
        case 2:
          return body(static_cast<const uint16_t*>(word), 0);
        case 4:
          return body(static_cast<const uint32_t*>(word), 0);
        case 8:
          return body(static_cast<const uint64_t*>(word), 0);
        default:
          return body(static_cast<const uint64_t*>(word), 0) &&
                 body(static_cast<const uint64_t*>(word), 1);
      }
    }
  };

  std::array<Look, kMost> looks_;
  uint32_t count_ = 0;
};

}  // namespace tokenyard::simt
