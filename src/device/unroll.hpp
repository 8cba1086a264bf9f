/// Unrolling hints for the GPU compiler. Host compilers decide for themselves.
#pragma once

#include "device/macros.hpp"

#if TOKENYARD_DEVICE_BODY
/// Before a loop whose array elements must stay in registers.
#define UNROLL _Pragma("unroll")
/// Before a loop that unrolling would only enlarge.
#define KEEP_ROLLED _Pragma("unroll 1")
#else
#define UNROLL
#define KEEP_ROLLED
#endif
