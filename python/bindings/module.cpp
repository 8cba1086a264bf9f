/// The module `_tokenyard`. It only translates; the API that users see, and its documentation, is
/// the package `tokenyard`.
#include "base/trace_range.hpp"
#include "forks.hpp"
#include "job.hpp"
#include "registration.hpp"
#include "tokenyard/version.hpp"

namespace nb = nanobind;

NB_MODULE(_tokenyard, m) {
  m.doc() = "The C++ side of the package tokenyard; not meant to be used directly.";
  m.attr("version") = TOKENYARD_VERSION_STRING;
  m.attr("trace_ranges") = tokenyard::TraceRange::available();
  tokenyard::python::Forks::count();
  m.def("warn_of_leaks", &nb::set_leak_warnings, nb::arg("warn"),
        "Sets whether objects that outlive the interpreter are reported as leaks.");
  tokenyard::python::register_errors(m);
  tokenyard::python::register_topology(m);
  auto job = tokenyard::python::register_job(m);
  tokenyard::python::register_world(m);
  tokenyard::python::register_arena_lending(m);
  tokenyard::python::register_received(m);
  tokenyard::python::register_expert_parallel(m);
  tokenyard::python::register_low_latency(m);
  tokenyard::python::register_collectives(m, job);
  tokenyard::python::register_group(m);
  tokenyard::python::register_device_collectives(m);
  tokenyard::python::register_core_table(m);
  tokenyard::python::register_store_server(m);
  tokenyard::python::register_megakernel(m);
  tokenyard::python::register_dense_decoder(m);
  tokenyard::python::register_doctor(m);
}
