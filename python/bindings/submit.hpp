/// Starts operations described by plain values, for the package and for torch's backend.
#pragma once

#include "core_table.hpp"
#include "tokenyard/collectives.hpp"

namespace tokenyard::python {

/// Starts an operation. Throws InvalidArgument if the description is not a valid one.
Work submit(Group& group, const core::Operation& operation);

}  // namespace tokenyard::python
