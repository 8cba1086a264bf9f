/// A store that torch's backend implements, as a core::Store of core_table.hpp.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "control/store.hpp"

namespace tokenyard::python {

/// Takes the core::Store out of a capsule; the result owns it.
std::shared_ptr<control::Store> own_store_of(const nanobind::object& capsule);

}  // namespace tokenyard::python
