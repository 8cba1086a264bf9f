/// For what is rarely run and stands at many places.
#pragma once

#include "device/macros.hpp"

#if TOKENYARD_DEVICE_BODY
/// Inlined all the same: around a call, what lives in registers would go through memory. Say
/// [[unlikely]] where it is reached.
#define COLD DEVICE
#else
/// Out of line, so that to the simulator, which tells places by their addresses, it is one place.
#define COLD [[gnu::noinline]] inline
#endif
