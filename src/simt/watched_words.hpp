/// The words that a thread has read since it last began to wait. As long as their values are
/// unchanged, its condition would find nothing new, so the thread need not run: comparing a word
/// costs a hundredth of a switch to the fiber.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tokenyard::simt {

class WatchedWords {
 public:
  /// Records the value read from a word of `bytes` (1, 2, 4, 8 or 16).
  void saw(const void* word, const void* value, uint32_t bytes) {
    if (count_ < kMost) looks_[count_].set(word, value, bytes);
    if (count_ <= kMost) ++count_;
  }
  /// Records that the thread did more than read, so words do not tell whether it would find news.
  void acted() { count_ = kMost + 1; }
  void forget() { count_ = 0; }

  /// Returns whether all words are unchanged; false if none were read, or more than are kept.
  bool hold_the_same() const {
    if (count_ == 0 || count_ > kMost) return false;
    for (uint32_t i = 0; i < count_; ++i)
      if (!looks_[i].holds_the_same()) return false;
    return true;
  }

 private:
  static constexpr uint32_t kMost = 6;  // A wait reads three: its own, the failure, the abort flag.

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
        // Relaxed: a woken thread reads the word again, with the order that it needs.
        return __atomic_load_n(at + i, __ATOMIC_RELAXED) == static_cast<T>(seen[i]);
      });
    }
    /// Calls `body` per word, until it returns false; 16 bytes count as two words of 8.
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
