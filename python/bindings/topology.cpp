/// Bindings of the topology, as read-only values.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "registration.hpp"
#include "tokenyard/world.hpp"

namespace nb = nanobind;

namespace tokenyard::python {
namespace {

const char* name_of(Reach reach) {
  switch (reach) {
    case Reach::none:
      return "none";
    case Reach::self:
      return "self";
    case Reach::load_store:
      return "load_store";
    case Reach::put_signal:
      return "put_signal";
  }
  throw InternalError("a reach without a name");
}

}  // namespace

void register_topology(nb::module_& m) {
  nb::class_<PeerReach>(m, "PeerReach", "The way from this rank to a peer's memory.")
      .def_prop_ro(
          "reach", [](const PeerReach& peer) { return name_of(peer.reach); },
          "'none', 'self', 'load_store' or 'put_signal'.")
      .def_ro("how", &PeerReach::how, "The fabric, as text.")
      .def_ro("why_not", &PeerReach::why_not,
              "The reason if its memory is not within reach of loads and stores; else empty.");
  nb::class_<Topology>(m, "Topology", "The host of each rank, and the way to each rank.")
      .def_ro("hosts", &Topology::hosts, "Number of hosts.")
      .def_ro("host_of", &Topology::host_of, "[ranks] host of each rank.")
      .def_ro("peers", &Topology::peers, "[ranks] way to each rank.")
      .def("__str__", &Topology::text, "Returns a table of text.");
}

}  // namespace tokenyard::python
