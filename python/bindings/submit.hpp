/// An operation described by plain values, as the package and torch's backend name it.
#pragma once

#include "core_table.hpp"
#include "tokenyard/collectives.hpp"

namespace tokenyard::python {

/// Starts it. Throws InvalidArgument where the description is not one of an operation.
Work submit(Group& group, const core::Operation& operation);

}  // namespace tokenyard::python
