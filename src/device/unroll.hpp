/// Unrolling hints for the GPU compiler. Host compilers decide for themselves.
#pragma once

#include "device/macros.hpp"

#if TOKENYARD_DEVICE_BODY
/// Precedes a loop over an array that must stay in registers.
#define TOKENYARD_UNROLL _Pragma("unroll")
/// Precedes a loop that unrolling would only enlarge.
#define TOKENYARD_KEEP_ROLLED _Pragma("unroll 1")
#else
#define TOKENYARD_UNROLL
#define TOKENYARD_KEEP_ROLLED
#endif
