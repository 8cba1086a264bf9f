/// A kernel broke a rule of the vocabulary: lanes that do not meet, barriers that do not agree.
#pragma once

#include "tokenyard/error.hpp"

namespace tokenyard::simt {

/// Names both parties and where in the source each stands.
class KernelMisuse : public InternalError {
 public:
  using InternalError::InternalError;
};

/// Nobody can go on; lists what each thread awaits.
class Deadlock : public InternalError {
 public:
  using InternalError::InternalError;
};

}  // namespace tokenyard::simt
