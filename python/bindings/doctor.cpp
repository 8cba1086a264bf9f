/// What works on this machine, as read-only values.
#include "tokenyard/doctor.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "registration.hpp"

namespace nb = nanobind;

namespace tokenyard::python {

void register_doctor(nb::module_& m) {
  nb::class_<GpuFacts>(m, "GpuFacts", "A GPU of this machine.")
      .def_ro("index", &GpuFacts::index)
      .def_ro("name", &GpuFacts::name)
      .def_ro("uuid", &GpuFacts::uuid)
      .def_ro("memory_bytes", &GpuFacts::memory_bytes)
      .def_ro("links", &GpuFacts::links,
              "To each GPU: 'NV18', 'PCIe peer', 'none'; '-' to itself.");
  nb::class_<FabricFacts>(m, "FabricFacts", "A way for ranks to reach each other.")
      .def_ro("name", &FabricFacts::name)
      .def_ro("works", &FabricFacts::works)
      .def_ro("why", &FabricFacts::why, "Why it works, as far as it was tried, or does not.");
  nb::class_<Diagnosis>(m, "Diagnosis", "What works on this machine, and why the rest does not.")
      .def_ro("system", &Diagnosis::system)
      .def_ro("toolkit", &Diagnosis::toolkit)
      .def_ro("driver", &Diagnosis::driver)
      .def_ro("gpus", &Diagnosis::gpus)
      .def_ro("fabrics", &Diagnosis::fabrics)
      .def("__str__", &Diagnosis::text, "A page for people.");
  m.def("doctor", &doctor, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace tokenyard::python
