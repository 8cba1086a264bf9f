/// What this machine has, for people and for programs.
#include "registration.hpp"

namespace tokenyard::python {

// Declared in include/tokenyard/doctor.hpp.
void register_doctor(nanobind::module_&) {}

}  // namespace tokenyard::python
