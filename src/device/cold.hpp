/// Marks functions that rarely run but are called in many places.
#pragma once

#include "device/macros.hpp"

#if TOKENYARD_DEVICE_BODY
/// Inlined, because a call would spill live registers to memory. Mark the branch that leads to the
/// function [[unlikely]].
#define TOKENYARD_COLD TOKENYARD_DEVICE
#else
/// Out of line: the simulator identifies places by code address, and so sees one place, not many.
#define TOKENYARD_COLD [[gnu::noinline]] inline
#endif
