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
      .def_ro("name", &GpuFacts::name)
      .def_ro("uuid", &GpuFacts::uuid)
      .def_ro("memory_bytes", &GpuFacts::memory_bytes)
      .def_ro("links", &GpuFacts::links,
              "Link to each GPU: 'NV18', 'PCIe peer' or 'none'; '-' to itself.");
  nb::class_<FabricFacts>(m, "FabricFacts", "A fabric, by which ranks reach each other.")
      .def_ro("name", &FabricFacts::name)
      .def_ro("works", &FabricFacts::works)
      .def_ro("why", &FabricFacts::why, "Why it works, as far as it was tried, or does not.");
  nb::class_<Diagnosis>(m, "Diagnosis", "Hardware, driver and fabrics of this machine.")
      .def_ro("system", &Diagnosis::system)
      .def_ro("toolkit", &Diagnosis::toolkit)
      .def_ro("driver", &Diagnosis::driver)
      .def_ro("gpus", &Diagnosis::gpus)
      .def_ro("fabrics", &Diagnosis::fabrics)
      .def("__str__", &Diagnosis::text, "Returns a page of text.");
  m.def("doctor", &doctor, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace tokenyard::python
