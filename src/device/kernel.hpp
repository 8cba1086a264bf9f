/// How a kernel becomes something that can be launched.
///
/// A kernel is a body `void body(const Params&)` in the words of device/, in a header of its own.
/// Two tiny files include the header, one for each compiler, and DEFINE_KERNEL at its end gives
/// each its half of the entry:
///
///     counts_kernel.hpp    DEVICE void exchange_counts(const CountsParams& params) {...}
///                          DEFINE_KERNEL(counts_kernel, exchange_counts, CountsParams,
///                          CountsShared,
///                                        512)
///     counts_host.cpp      #include "counts_kernel.hpp"
///     counts_gpu.cu        #include "counts_kernel.hpp"
///     counts.hpp           DECLARE_KERNEL(counts_kernel, CountsParams);
///
/// The last argument is the largest block (threads) that the kernel is ever launched with.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard {

/// A kernel without its parameter type: what an Accelerator launches.
struct KernelEntry {
  const char* name;
  uint32_t params_bytes;
  uint32_t shared_bytes;  ///< of its Shared struct
  uint32_t threads_max;
  void (*on_host)(const void* params);  ///< one thread's run of the body
  const void* on_gpu;                   ///< __global__ function; null in builds without CUDA
  const void* on_gpu_rows;  ///< the same over an array of params, one a grid row (ranks on one GPU)
};

template <class Params>
struct Kernel {
  KernelEntry entry;
};

struct NoShared {};

}  // namespace tokenyard

#define DECLARE_KERNEL(name, Params) extern const ::tokenyard::Kernel<Params> name

#if TOKENYARD_DEVICE_BODY

#define DEFINE_KERNEL(name, body, Params, Shared, threads)                                        \
  static __global__ void __launch_bounds__(threads, 1)                                            \
      name##_on_gpu(const __grid_constant__ Params params) {                                      \
    body(params);                                                                                 \
  }                                                                                               \
  static __global__ void __launch_bounds__(threads, 1) name##_on_gpu_rows(const Params* params) { \
    body(params[blockIdx.y]);                                                                     \
  }                                                                                               \
  const void* name##_gpu_entry() {                                                                \
    return reinterpret_cast<const void*>(&name##_on_gpu);                                         \
  }                                                                                               \
  const void* name##_gpu_rows_entry() {                                                           \
    return reinterpret_cast<const void*>(&name##_on_gpu_rows);                                    \
  }

#else

#if TOKENYARD_WITH_CUDA
#define TOKENYARD_GPU_ENTRY_(function) function()
#else
#define TOKENYARD_GPU_ENTRY_(function) nullptr
#endif

#define TOKENYARD_KERNEL_(name, body, Params, Shared, threads, gpu, gpu_rows) \
  extern const ::tokenyard::Kernel<Params> name;                              \
  const ::tokenyard::Kernel<Params> name{                                     \
      {#name, sizeof(Params), sizeof(Shared), threads,                        \
       [](const void* params) { body(*static_cast<const Params*>(params)); }, gpu, gpu_rows}};

#define DEFINE_KERNEL(name, body, Params, Shared, threads)                                       \
  const void* name##_gpu_entry();                                                                \
  const void* name##_gpu_rows_entry();                                                           \
  TOKENYARD_KERNEL_(name, body, Params, Shared, threads, TOKENYARD_GPU_ENTRY_(name##_gpu_entry), \
                    TOKENYARD_GPU_ENTRY_(name##_gpu_rows_entry))

/// A kernel that has no GPU side: tests of the executor and of the simulator.
#define DEFINE_HOST_KERNEL(name, body, Params, Shared, threads) \
  TOKENYARD_KERNEL_(name, body, Params, Shared, threads, nullptr, nullptr)

#endif
