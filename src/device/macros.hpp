/// Marks functions by where they run. Only this file tests which compiler reads it; the other
/// headers of this folder test TOKENYARD_DEVICE_BODY to choose between their two bodies.
#pragma once

#if defined(__CUDACC__)
#define TOKENYARD_DEVICE_BODY 1  // This translation unit holds GPU code.
#define TOKENYARD_DEVICE __device__ __forceinline__
#define TOKENYARD_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define TOKENYARD_DEVICE_BODY 0
// Always inlined, so that a word's code address lies in the code of the kernel that calls it.
#define TOKENYARD_DEVICE inline __attribute__((always_inline))
#define TOKENYARD_HOST_DEVICE inline
#endif
