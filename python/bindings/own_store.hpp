/// A store that lives on the other side of core_table.hpp.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "control/store.hpp"

namespace tokenyard::python {

/// From a capsule with a core::Store, which is emptied: its end is this object's now.
std::shared_ptr<control::Store> own_store_of(const nanobind::object& capsule);

}  // namespace tokenyard::python
