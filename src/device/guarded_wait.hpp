/// wait_until for a call with its own time limit: one that gives more time to a rank that shows
/// signs of life, say. The promises of wait.hpp hold here too, but the guard must keep them.
#pragma once

#include "device/wait.hpp"

namespace tokenyard {

/// Waits until `condition()` holds. Calls `goes_on()` after each false condition, and returns false
/// once that does. `goes_on` must return false some day, poll the abort flag, and have reported
/// why. `what` is taken by reference, so that `condition` may write what.seen.
template <class Condition, class GoesOn>
DEVICE bool wait_until(Awaited& what, Condition condition, GoesOn goes_on);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/guarded_wait.hpp"
#else
#include "device/host/guarded_wait.hpp"
#endif
