/// An owner of an accelerator's event. A host-side wait may throw, and then frees its event too.
#pragma once

#include <utility>

#include "device/accelerator.hpp"

namespace tokenyard {

/// Frees its event in the destructor, which must run before that of the accelerator.
class OwnedEvent {
 public:
  /// `event`: what record() or mark() of this accelerator returned.
  OwnedEvent(Accelerator& accelerator, Event event) : accelerator_(&accelerator), event_(event) {}
  OwnedEvent(OwnedEvent&& other) noexcept
      : accelerator_(std::exchange(other.accelerator_, nullptr)), event_(other.event_) {}
  OwnedEvent& operator=(OwnedEvent&& other) noexcept {
    std::swap(accelerator_, other.accelerator_);
    std::swap(event_, other.event_);
    return *this;
  }
  ~OwnedEvent() {
    if (accelerator_ != nullptr) accelerator_->free_event(event_);
  }

  Event get() const { return event_; }

 private:
  Accelerator* accelerator_;  ///< null: moved from
  Event event_;
};

}  // namespace tokenyard
