/// Marks the place of a rule about values, such as "a credit is given after its slot was read", at
/// which the simulator may break the rule: `--mutants` then proves that a suite notices.
#pragma once

#include "device/macros.hpp"

namespace tokenyard {

/// Returns whether the rule stated here is broken in this run: only in the simulator, and only when
/// it runs the mutant of this place. A constant on GPUs.
TOKENYARD_DEVICE bool mutated();

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/mutated.hpp"
#else
#include "device/host/mutated.hpp"
#endif
