/// Tracks the stream of an object's last call, so that its calls run in the order in which they
/// were made, even on different streams.
#pragma once

#include "device/accelerator.hpp"

namespace tokenyard {

class LastStream {
 public:
  explicit LastStream(Accelerator& accelerator) : accelerator_(accelerator) {}

  /// Must precede any other work of a call on `stream`; orders the call after the previous one.
  void begin_call(Stream stream);
  /// Call after synchronising `stream`: no work of this object is pending there, so its owner may
  /// destroy it.
  void forget(Stream stream);
  /// Returns whether a call may still be running.
  bool in_use() const { return in_use_; }
  /// Returns whether a CUDA graph has captured a call.
  bool captured() const { return captured_; }
  /// Returns the stream of the last call, or the default stream.
  Stream get() const { return stream_; }

 private:
  Accelerator& accelerator_;
  Stream stream_;
  bool in_use_ = false;
  bool captured_ = false;
};

}  // namespace tokenyard
