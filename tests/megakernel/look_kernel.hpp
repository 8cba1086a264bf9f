/// A kernel whose blocks check before an iteration whether their run has failed, as feeders do.
#pragma once

#include "megakernel/kernels/run_params.hpp"

namespace tokenyard::megakernel {

struct LookParams {
  RunParams run;
  uint64_t iteration;
  uint32_t* cancelled;  ///< [blocks] host-visible
};
TOKENYARD_DECLARE_KERNEL(look_kernel, LookParams);

}  // namespace tokenyard::megakernel
