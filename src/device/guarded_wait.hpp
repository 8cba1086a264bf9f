/// wait_until for a call whose patience is its own: one that gives more time to who shows signs of
/// life, say. What wait.hpp promises holds as well, but the guard has to see to it.
#pragma once

#include "device/wait.hpp"

namespace tokenyard {

/// Waits until `condition()` holds. `goes_on()` is asked whenever it was found false, and when it
/// says no, so does this. It must say so some day, heed the alarm, and have reported why. `what` is
/// taken by reference, so that `condition` may write what.seen.
template <class Condition, class GoesOn>
DEVICE bool wait_until(Awaited& what, Condition condition, GoesOn goes_on);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/guarded_wait.hpp"
#else
#include "device/host/guarded_wait.hpp"
#endif
