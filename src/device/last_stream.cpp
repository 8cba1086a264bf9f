#include "device/last_stream.hpp"

#include "device/owned_event.hpp"

namespace tokenyard {

void LastStream::begin_call(Stream stream) {
  // A captured graph is ordered by the code that launches it.
  if (accelerator_.captures(stream)) {
    captured_ = true;
    return;
  }
  if (in_use_ && stream_.native != stream.native) {
    const OwnedEvent before(accelerator_, accelerator_.mark(stream_));
    accelerator_.wait(stream, before.get());
  }
  stream_ = stream;
  in_use_ = true;
}

void LastStream::forget(Stream stream) {
  if (stream_.native != stream.native) return;
  in_use_ = false;
  stream_ = {};
}

}  // namespace tokenyard
