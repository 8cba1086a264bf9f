/// A kernel that calls every elementary function, and one that tests a Completion in both ways.
#pragma once

#include "device/device.hpp"
#include "device/functions.hpp"

namespace tokenyard::testing {

struct Functions {
  float exponential, sine, cosine, reciprocal_square_root;
  int64_t nearest;
};
struct FunctionsParams {
  uint32_t count;
  const float* values;  ///< [count]
  Functions* found;     ///< [count]
};

TOKENYARD_DEVICE void functions_body(const FunctionsParams& params) {
  for (uint32_t i = thread::index(); i < params.count; i += block::threads()) {
    const float x = params.values[i];
    params.found[i] = {exponential(x), sine(x), cosine(x), reciprocal_square_root(x < 0 ? -x : x),
                       nearest_integer(x)};
  }
}

TOKENYARD_DEFINE_KERNEL(functions_kernel, functions_body, FunctionsParams, NoShared, 64)

struct PhasesShared {
  Completion completion;
};
struct PhasesParams {
  uint32_t* seen;  ///< [4] done_now(0) and done(0), before and after the arrival
};

TOKENYARD_DEVICE void phases_body(const PhasesParams& params) {
  if (thread::index() != 0) return;
  Completion& completion = block::shared<PhasesShared>().completion;
  completion.init(1);
  fence_async();
  params.seen[0] = completion.done_now(0);
  params.seen[1] = completion.done(0);
  completion.arrive();
  params.seen[2] = completion.done_now(0);
  params.seen[3] = completion.done(0);
}

TOKENYARD_DEFINE_KERNEL(phases_kernel, phases_body, PhasesParams, PhasesShared, 32)

}  // namespace tokenyard::testing
