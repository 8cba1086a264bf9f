/// wait_until for calls with their own time limit, such as one that is extended while the awaited
/// rank shows signs of life. The guarantees of wait.hpp still hold, but the caller must keep them.
#pragma once

#include "device/wait.hpp"

namespace tokenyard {

/// Waits until `condition()` holds. Calls `goes_on()` after each poll that fails, and returns false
/// when it returns false. `goes_on` must poll the abort flag, must return false eventually, and
/// must report the reason before it does. `condition` may write what.seen.
template <class Condition, class GoesOn>
TOKENYARD_DEVICE bool wait_until(Awaited& what, Condition condition, GoesOn goes_on);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/guarded_wait.hpp"
#else
#include "device/host/guarded_wait.hpp"
#endif
