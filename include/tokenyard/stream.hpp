/// Streams: the queues of work in which calls take place.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tokenyard {

/// A queue of work: a cudaStream_t on a GPU. A host has one queue, and the value means nothing
/// there. Borrowed: its owner keeps it until the calls on it were waited for.
struct Stream {
  /// The default stream of the rank's device.
  constexpr Stream() = default;
  /// `native`: a cudaStream_t as an integer.
  constexpr explicit Stream(uintptr_t native) : native(native) {}
  /// `native`: a cudaStream_t.
  template <class T>
  explicit Stream(T* native) : native(reinterpret_cast<uintptr_t>(native)) {}
  constexpr explicit Stream(std::nullptr_t) {}

  friend constexpr bool operator==(Stream, Stream) = default;

  uintptr_t native = 0;  ///< the cudaStream_t's value
};

}  // namespace tokenyard
