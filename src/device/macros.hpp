/// How a function says where it runs. The only file that asks which compiler reads it, together
/// with the word headers beside it that choose between their two bodies.
#pragma once

#if defined(__CUDACC__)
#define TOKENYARD_DEVICE_BODY 1  // This translation unit holds GPU code.
#define DEVICE __device__ __forceinline__
#define HOST_DEVICE __host__ __device__ __forceinline__
#else
#define TOKENYARD_DEVICE_BODY 0
// Always inlined, so that a code address in a word lies in the kernel that said it.
#define DEVICE inline __attribute__((always_inline))
#define HOST_DEVICE inline
#endif
