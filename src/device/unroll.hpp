/// What a GPU's compiler is told of a loop. Hosts unroll as they like.
#pragma once

#include "device/macros.hpp"

#if TOKENYARD_DEVICE_BODY
/// Before a loop whose array elements are to be registers.
#define UNROLL _Pragma("unroll")
/// Before a loop that would only grow by being unrolled.
#define KEEP_ROLLED _Pragma("unroll 1")
#else
#define UNROLL
#define KEEP_ROLLED
#endif
