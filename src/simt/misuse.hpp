/// Errors of kernels that break the vocabulary's rules, such as lanes that diverge at a warp word.
#pragma once

#include "tokenyard/error.hpp"

namespace tokenyard::simt {

/// A broken rule. The text names the threads involved and the place of each in the source.
class KernelMisuse : public InternalError {
 public:
  using InternalError::InternalError;
};

/// No thread can continue. The text lists what each thread awaits.
class Deadlock : public InternalError {
 public:
  using InternalError::InternalError;
};

}  // namespace tokenyard::simt
