/// Bindings of the diagnosis of this machine, as read-only values.
#include "tokenyard/doctor.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "registration.hpp"

namespace nb = nanobind;

namespace tokenyard::python {

void register_doctor(nb::module_& m) {
  nb::class_<GpuFacts>(m, "GpuFacts", "A GPU of this machine.")
      .def_ro("index", &GpuFacts::index)
      .def_ro("cuda_index", &GpuFacts::cuda_index,
              "CUDA's number for it in this process; -1: hidden from it.")
      .def_ro("name", &GpuFacts::name)
      .def_ro("uuid", &GpuFacts::uuid)
      .def_ro("memory_bytes", &GpuFacts::memory_bytes)
      .def_ro("links", &GpuFacts::links,
              "Link to each GPU: 'NV18', 'PCIe peer' or 'none'; '-' to itself.")
      .def_ro("link_bytes_per_second", &GpuFacts::link_bytes_per_second,
              "Rate of its active NVLinks together, per direction; 0: none, or not stated.");
  nb::class_<FabricFacts>(m, "FabricFacts", "A fabric, by which ranks reach each other.")
      .def_ro("name", &FabricFacts::name)
      .def_ro("works", &FabricFacts::works)
      .def_ro("why", &FabricFacts::why, "Why it works, as far as it was tried, or does not.")
      .def_ro("remedy", &FabricFacts::remedy,
              "Command or option for what does not work; empty if all of it does.");
  nb::class_<SelfTest>(m, "SelfTest", "A dispatch and a combine among ranks of this machine.")
      .def_ro("device", &SelfTest::device)
      .def_ro("ranks", &SelfTest::ranks)
      .def_ro("how", &SelfTest::how, "How rank 0 reaches rank 1.")
      .def_ro("dispatch_bytes_per_second", &SelfTest::dispatch_bytes_per_second,
              "Rate at which the slowest rank received rows from others.")
      .def_ro("combine_bytes_per_second", &SelfTest::combine_bytes_per_second)
      .def_ro("link_bytes_per_second", &SelfTest::link_bytes_per_second,
              "Rate of a GPU's links; 0: no link between the ranks, or unknown.")
      .def_prop_ro("link_share", &SelfTest::link_share,
                   "Share of the link that the faster call achieved, 0 to 1.")
      .def_ro("error", &SelfTest::error, "Why it failed; empty if it passed.")
      .def_ro("remedy", &SelfTest::remedy);
  nb::class_<Diagnosis>(m, "Diagnosis", "Hardware, driver and fabrics of this machine.")
      .def_ro("system", &Diagnosis::system)
      .def_ro("toolkit", &Diagnosis::toolkit)
      .def_ro("driver", &Diagnosis::driver)
      .def_ro("gpus", &Diagnosis::gpus)
      .def_ro("fabrics", &Diagnosis::fabrics)
      .def_ro("self_tests", &Diagnosis::self_tests, "Empty: not made.")
      .def("json", &Diagnosis::json, "Returns a JSON object of these fields.")
      .def("__str__", &Diagnosis::text, "Returns a page of text.");
  m.def(
      "doctor",
      [](bool self_test) {
        Diagnosis found = doctor();
        if (self_test) found.self_tests = tokenyard::self_test(found);
        return found;
      },
      nb::arg("self_test") = false, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace tokenyard::python
