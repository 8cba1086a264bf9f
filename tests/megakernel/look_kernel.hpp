/// A kernel whose blocks look before an iteration, as feeders do, whether their run has failed.
#pragma once

#include "megakernel/kernels/run_params.hpp"

namespace tokenyard::megakernel {

struct LookParams {
  RunParams run;
  uint64_t iteration;
  uint32_t* cancelled;  ///< [blocks] host-visible
};
DECLARE_KERNEL(look_kernel, LookParams);

}  // namespace tokenyard::megakernel
