/// Defines kernels that an Accelerator can launch.
///
/// A kernel is a function `void body(const Params&)` written in the words of device/, in a header
/// of its own. Two short files include the header, one per compiler; TOKENYARD_DEFINE_KERNEL at the
/// end of the header defines the half of the entry that each compiler provides:
///
///     counts_kernel.hpp    TOKENYARD_DEVICE void exchange_counts(const CountsParams& params) {...}
///                          TOKENYARD_DEFINE_KERNEL(counts_kernel, exchange_counts, CountsParams,
///                                        CountsShared, 512)
///     counts_host.cpp      #include "counts_kernel.hpp"
///     counts_gpu.cu        #include "counts_kernel.hpp"
///     counts.hpp           TOKENYARD_DECLARE_KERNEL(counts_kernel, CountsParams);
///
/// The last argument is the largest block size, in threads, that a launch may use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard {

/// A kernel without its parameter type, as an Accelerator launches it.
struct KernelEntry {
  const char* name;
  uint32_t params_bytes;
  uint32_t shared_bytes;                ///< size of its Shared struct
  uint32_t threads_max;                 ///< per block
  void (*on_host)(const void* params);  ///< runs the body as one thread
  const void* on_gpu;                   ///< __global__ function; null in builds without CUDA
  const void* on_gpu_rows;  ///< for ranks on one GPU: takes an array with one Params per grid row
};

template <class Params>
struct Kernel {
  KernelEntry entry;
};

struct NoShared {};

}  // namespace tokenyard

#define TOKENYARD_DECLARE_KERNEL(name, Params) extern const ::tokenyard::Kernel<Params> name

#if TOKENYARD_DEVICE_BODY

#define TOKENYARD_DEFINE_KERNEL(name, body, Params, Shared, threads)                              \
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

#define TOKENYARD_DEFINE_KERNEL(name, body, Params, Shared, threads)                             \
  const void* name##_gpu_entry();                                                                \
  const void* name##_gpu_rows_entry();                                                           \
  TOKENYARD_KERNEL_(name, body, Params, Shared, threads, TOKENYARD_GPU_ENTRY_(name##_gpu_entry), \
                    TOKENYARD_GPU_ENTRY_(name##_gpu_rows_entry))

/// Defines a kernel without a GPU side, for tests of the executor and the simulator.
#define TOKENYARD_DEFINE_HOST_KERNEL(name, body, Params, Shared, threads) \
  TOKENYARD_KERNEL_(name, body, Params, Shared, threads, nullptr, nullptr)

#endif
