/// The stream of an object's last call: its calls take place in the order in which they are made,
/// whatever their streams.
#pragma once

#include "device/accelerator.hpp"

namespace tokenyard {

class LastStream {
 public:
  explicit LastStream(Accelerator& accelerator) : accelerator_(accelerator) {}

  /// Before anything of a call is enqueued: it comes after the call before, on another stream too.
  void begin_call(Stream stream);
  /// Nothing of this object is under way in a stream that was awaited, so its owner may free it.
  void forget(Stream stream);
  /// Whether a call may be under way.
  bool in_use() const { return in_use_; }
  /// Of the last call, or the default one.
  Stream get() const { return stream_; }

 private:
  Accelerator& accelerator_;
  Stream stream_;
  bool in_use_ = false;
};

}  // namespace tokenyard
