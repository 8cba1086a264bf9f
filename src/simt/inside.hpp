/// The border between a kernel and what runs it.
#pragma once

#include "simt/executor.hpp"

namespace tokenyard::simt {

/// While a thread is inside the executor or memory, its instrumented code is not the kernel's.
class Executor::Inside {
 public:
  explicit Inside(Executor& executor) : executor_(executor) { executor_.in_kernel_ = false; }
  ~Inside() { executor_.in_kernel_ = true; }

 private:
  Executor& executor_;
};

}  // namespace tokenyard::simt
