/// Bindings of the topology, as read-only values.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "registration.hpp"
#include "seconds.hpp"
#include "tokenyard/doctor.hpp"
#include "tokenyard/world.hpp"

namespace nb = nanobind;
using namespace nb::literals;

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
  nb::class_<NetworkOptions>(m, "NetworkOptions",
                             "See tokenyard.NetworkOptions; 0, '' or None: not set.")
      .def(
          "__init__",
          [](NetworkOptions* self, const std::string& transport, const std::string& interfaces,
             const std::string& ports, uint32_t connections, uint32_t queues, uint32_t queue_depth,
             double timeout_s, std::optional<bool> gpu_memory, std::optional<uint32_t> gid_index,
             std::optional<uint32_t> traffic_class, std::optional<uint32_t> service_level,
             const std::string& pkey, uint32_t mtu, std::optional<uint32_t> retry_count,
             uint32_t retry_timeout) {
            new (self) NetworkOptions{.transport = transport,
                                      .interfaces = interfaces,
                                      .ports = ports,
                                      .connections = connections,
                                      .queues = queues,
                                      .queue_depth = queue_depth,
                                      .timeout = nanoseconds_of(timeout_s),
                                      .gpu_memory = gpu_memory,
                                      .gid_index = gid_index,
                                      .traffic_class = traffic_class,
                                      .service_level = service_level,
                                      .pkey = pkey,
                                      .mtu = mtu,
                                      .retry_count = retry_count,
                                      .retry_timeout = retry_timeout};
          },
          nb::kw_only(), "transport"_a = "", "interfaces"_a = "", "ports"_a = "",
          "connections"_a = 0, "queues"_a = 0, "queue_depth"_a = 0, "timeout_s"_a = 0.0,
          "gpu_memory"_a = nb::none(), "gid_index"_a = nb::none(), "traffic_class"_a = nb::none(),
          "service_level"_a = nb::none(), "pkey"_a = "", "mtu"_a = 0, "retry_count"_a = nb::none(),
          "retry_timeout"_a = 0);
  nb::class_<NetworkPath>(m, "NetworkPath", "A connection to a rank of another host.")
      .def_ro("rank", &NetworkPath::rank, "The other rank.")
      .def_ro("number", &NetworkPath::number, "Index among the connections to it.")
      .def_ro("here", &NetworkPath::from, "Address of this rank's end.")
      .def_ro("there", &NetworkPath::to, "Address of the other end.")
      .def_ro("up", &NetworkPath::up, "Whether it carries requests now.")
      .def_ro("bytes_sent", &NetworkPath::bytes_sent, "Bytes sent since the world was made.")
      .def_ro("times_lost", &NetworkPath::times_lost,
              "Times that it was given up; its queues went on over others.")
      .def_ro("bytes_per_second", &NetworkPath::bytes_per_second,
              "Rate as last measured under load; 0 if never.");
  nb::class_<PeerTimes>(m, "PeerTimes", "Times of put and signal to a rank.")
      .def_ro("rank", &PeerTimes::rank, "The other rank.")
      .def_ro("how", &PeerTimes::how, "The way to it, as in the topology.")
      .def_ro("round_trip_us", &PeerTimes::round_trip_us,
              "Microseconds of a put of 8 bytes and its signal, both ways: the median of 64.")
      .def_ro("bytes_per_second", &PeerTimes::bytes_per_second,
              "Rate of puts of 1 MiB from this rank.")
      .def_ro("error", &PeerTimes::error, "Why it could not be measured; empty if it was.");
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
