/// For code that rarely runs and is used in many places.
#pragma once

#include "device/macros.hpp"

#if TOKENYARD_DEVICE_BODY
/// Inlined nevertheless: a call would spill live registers to memory. Mark the branch that
/// reaches it [[unlikely]].
#define COLD DEVICE
#else
/// Out of line, so that the simulator, which identifies places by code address, sees one place.
#define COLD [[gnu::noinline]] inline
#endif
