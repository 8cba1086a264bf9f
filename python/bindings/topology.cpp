/// How a rank reaches the others, as read-only values.
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
  nb::class_<PeerReach>(m, "PeerReach", "How one rank is reached from this one.")
      .def_prop_ro(
          "reach", [](const PeerReach& peer) { return name_of(peer.reach); },
          "'none', 'self', 'load_store' or 'put_signal'.")
      .def_ro("how", &PeerReach::how, "The means, for people.")
      .def_ro("why_not", &PeerReach::why_not,
              "Why its memory is not within reach of loads and stores, where it is not.");
  nb::class_<Topology>(m, "Topology", "Which ranks share a host, and how this rank reaches each.")
      .def_ro("hosts", &Topology::hosts, "Number of hosts.")
      .def_ro("host_of", &Topology::host_of, "Host of each rank.")
      .def_ro("peers", &Topology::peers, "How each rank is reached.")
      .def("__str__", &Topology::text, "A table for people.");
}

}  // namespace tokenyard::python
