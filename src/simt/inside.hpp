/// The boundary between a kernel and its executor.
#pragma once

#include "simt/executor.hpp"

namespace tokenyard::simt {

/// Marks that executor or memory code runs, whose instrumented accesses are not the kernel's.
class Executor::Inside {
 public:
  explicit Inside(Executor& executor) : executor_(executor) { executor_.in_kernel_ = false; }
  ~Inside() { executor_.in_kernel_ = true; }

 private:
  Executor& executor_;
};

}  // namespace tokenyard::simt
