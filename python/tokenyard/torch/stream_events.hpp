/// Events of a device that are used again: making and freeing one takes as long as enqueueing a
/// call.
#pragma once

#include <c10/core/Event.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace tokenyard::torch_backend {

/// Events that nobody uses at present. Any thread may call it.
class StreamEvents {
 public:
  c10::Event take(c10::DeviceType type) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return c10::Event(type);
    c10::Event event = std::move(free_.back());
    free_.pop_back();
    return event;
  }
  /// An event may be recorded anew although a stream still waits for it as it was.
  void give(c10::Event event) {
    const std::lock_guard lock(mutex_);
    if (free_.size() < kFreeMax) free_.push_back(std::move(event));
  }

 private:
  static constexpr size_t kFreeMax = 64;
  std::mutex mutex_;
  std::vector<c10::Event> free_;
};

using SharedEvents = std::shared_ptr<StreamEvents>;

/// The end of what a stream has been given so far. If that is the caller's own stream it needs no
/// event before somebody asks: waiting there costs nothing.
class StreamEnd {
 public:
  StreamEnd(SharedEvents events, c10::Stream stream)
      : events_(std::move(events)), stream_(stream) {}
  ~StreamEnd() {
    if (event_) events_->give(std::move(*event_));
  }
  StreamEnd(StreamEnd&&) = delete;

  c10::Stream stream() const { return stream_; }
  /// Marks the stream as it is now, unless it has been marked.
  void mark() {
    if (event_) return;
    event_ = events_->take(stream_.device_type());
    event_->record(stream_);
  }
  /// Makes another stream wait for this end.
  void block(c10::Stream other) {
    if (!event_ && other == stream_) return;
    mark();
    event_->block(other);
  }
  /// Returns whether the stream has come to its mark; false without one.
  bool passed() const { return event_ && event_->query(); }

 private:
  const SharedEvents events_;
  const c10::Stream stream_;
  std::optional<c10::Event> event_;
};

}  // namespace tokenyard::torch_backend
