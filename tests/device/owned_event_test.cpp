#include "device/owned_event.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "device/await_stream.hpp"
#include "fabric/manual_accelerator.hpp"

namespace tokenyard {
namespace {

TEST(OwnedEvent, IsFreedByItsLastOwner) {
  ManualAccelerator accelerator;
  {
    OwnedEvent first(accelerator, accelerator.record({}));
    const uintptr_t native = first.get().native;
    OwnedEvent second = std::move(first);
    EXPECT_EQ(second.get().native, native);
    EXPECT_EQ(accelerator.live_events(), 1u);
  }
  EXPECT_EQ(accelerator.live_events(), 0u);
}

TEST(OwnedEvent, AssignmentFreesTheOneBefore) {
  ManualAccelerator accelerator;
  std::vector<OwnedEvent> events;
  for (int i = 0; i < 3; ++i) events.emplace_back(accelerator, accelerator.record({}));
  events.erase(events.begin());
  EXPECT_EQ(accelerator.live_events(), 2u);
  events[0] = OwnedEvent(accelerator, accelerator.record({}));
  EXPECT_EQ(accelerator.live_events(), 2u);
  events.clear();
  EXPECT_EQ(accelerator.live_events(), 0u);
}

/// An interrupt (a signal's handler in Python, for one) may throw out of any host-side wait.
TEST(OwnedEvent, AnInterruptedWaitFreesItsEvent) {
  ManualAccelerator accelerator;
  const Stream stream = accelerator.make_stream();
  accelerator.keep_busy(stream);
  accelerator.while_waiting = [] { throw std::runtime_error("interrupted"); };
  EXPECT_THROW(await_stream(accelerator, 0, stream, std::chrono::hours(1), "work"),
               std::runtime_error);
  EXPECT_EQ(accelerator.live_events(), 0u);
}

}  // namespace
}  // namespace tokenyard
