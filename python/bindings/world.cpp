#include "world.hpp"
#include "fabric/world_access.hpp"

#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "device/accelerator.hpp"
#include "fabric/arena.hpp"
#include "fabric/replacement.hpp"
#include "interrupt.hpp"
#include "job.hpp"
#include "registration.hpp"
#include "seconds.hpp"
#include "tokenyard/doctor.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tokenyard::python {

const std::shared_ptr<World>& WorldHandle::get() const {
  if (!world_) throw InvalidArgument("world", "an open World", "one that was closed or rebuilt");
  return world_;
}

WorldHandle::WorldHandle(std::unique_ptr<World> world)
    : world_(shared_and_destroyed_unlocked(std::move(world))) {}

namespace {

WorldOptions options_of(double timeout_s, size_t arena_bytes, uint32_t hosts,
                        double rendezvous_s = 0, const NetworkOptions& network = {}) {
  return {.timeout = nanoseconds_of(timeout_s),
          .rendezvous_timeout = nanoseconds_of(rendezvous_s),
          .arena_bytes = arena_bytes,
          .hosts = hosts,
          .network = network,
          .interrupt = Interrupt()};
}

std::unique_ptr<WorldHandle> connect(const std::string& host, uint16_t port, uint32_t rank,
                                     uint32_t size, uint32_t local_rank, const std::string& job,
                                     const std::string& secret, const std::string& device,
                                     double timeout_s, double rendezvous_s, size_t arena_bytes,
                                     const std::string& host_name, const NetworkOptions& network,
                                     const std::vector<uint32_t>& joins) {
  const MeetingPlace where{.host = host,
                           .port = port,
                           .rank = rank,
                           .size = size,
                           .local_rank = local_rank,
                           .job = job,
                           .secret = secret,
                           .host_name = host_name};
  const WorldOptions options = options_of(timeout_s, arena_bytes, 1, rendezvous_s, network);
  nb::gil_scoped_release unlocked;
  return std::make_unique<WorldHandle>(joins.empty()
                                           ? connect_world(where, device, options)
                                           : connect_as_replacement(where, joins, device, options));
}

std::vector<std::unique_ptr<WorldHandle>> in_process(uint32_t ranks, const std::string& device,
                                                     uint32_t hosts, double timeout_s,
                                                     size_t arena_bytes) {
  const WorldOptions options = options_of(timeout_s, arena_bytes, hosts);
  nb::gil_scoped_release unlocked;
  std::vector<std::unique_ptr<WorldHandle>> handles;
  for (auto& world : World::in_process(ranks, device, options))
    handles.push_back(std::make_unique<WorldHandle>(std::move(world)));
  return handles;
}

std::vector<nb::bytes> all_gather(const WorldHandle& self, const nb::bytes& mine,
                                  const std::string& what) {
  const std::shared_ptr<World> world = self.get();
  const Callers::Turn turn = self.turn();
  std::vector<std::vector<std::byte>> gathered;
  {
    const std::span bytes(reinterpret_cast<const std::byte*>(mine.c_str()), mine.size());
    nb::gil_scoped_release unlocked;
    gathered = world->all_gather(bytes, what);
  }
  std::vector<nb::bytes> result;
  for (const auto& bytes : gathered) result.emplace_back(bytes.data(), bytes.size());
  return result;
}

void barrier(const WorldHandle& self, const std::string& what) {
  const std::shared_ptr<World> world = self.get();
  const Callers::Turn turn = self.turn();
  nb::gil_scoped_release unlocked;
  world->barrier(what);
}

std::vector<PeerTimes> times_of_peers(const WorldHandle& self, double timeout_s) {
  const std::shared_ptr<World> world = self.get();
  const Callers::Turn turn = self.turn();
  nb::gil_scoped_release unlocked;
  return time_peers(*world, nanoseconds_of(timeout_s));
}

std::unique_ptr<WorldHandle> rebuild(WorldHandle& self, const std::vector<uint32_t>& without,
                                     size_t arena_bytes) {
  const std::shared_ptr<World> world = self.get();
  const Callers::Turn turn = self.turn();
  std::unique_ptr<WorldHandle> rebuilt;
  {
    nb::gil_scoped_release unlocked;
    rebuilt = std::make_unique<WorldHandle>(world->rebuild(without, arena_bytes));
  }
  self.close();
  return rebuilt;
}

std::map<uint32_t, uint64_t> leave_out_of(const WorldHandle& self,
                                          const std::vector<uint32_t>& ranks) {
  const std::shared_ptr<World> world = self.get();
  const Callers::Turn turn = self.turn();
  nb::gil_scoped_release unlocked;
  return leave_out(*world, ranks);
}

std::unique_ptr<WorldHandle> refilled(WorldHandle& self, const std::vector<uint32_t>& ranks,
                                      size_t arena_bytes, double timeout_s) {
  const std::shared_ptr<World> world = self.get();
  const Callers::Turn turn = self.turn();
  std::unique_ptr<WorldHandle> next;
  {
    nb::gil_scoped_release unlocked;
    next = std::make_unique<WorldHandle>(
        refill(*world, ranks, arena_bytes, nanoseconds_of(timeout_s)));
  }
  self.close();
  return next;
}

std::unique_ptr<JobHandle> job_of(const WorldHandle& self) {
  return std::make_unique<JobHandle>(self.get()->job(), false);
}

std::optional<int> device_index(const WorldHandle& self) {
  const int index = accelerator_of(*self.get()).device_index();
  return index < 0 ? std::nullopt : std::optional(index);
}

double timeout_s(const WorldHandle& self) {
  return std::chrono::duration<double>(self.get()->timeout()).count();
}

}  // namespace

void register_world(nb::module_& m) {
  nb::class_<WorldHandle>(m, "World", "One rank's end of a world; see tokenyard.World.")
      .def_static("connect", &connect, nb::kw_only(), "host"_a, "port"_a, "rank"_a, "size"_a,
                  "local_rank"_a, "job"_a, "secret"_a, "device"_a, "timeout_s"_a, "rendezvous_s"_a,
                  "arena_bytes"_a, "host_name"_a, "network"_a, "joins"_a = std::vector<uint32_t>())
      .def_static("in_process", &in_process, "ranks"_a, nb::kw_only(), "device"_a, "hosts"_a,
                  "timeout_s"_a, "arena_bytes"_a)
      .def_prop_ro("rank", [](const WorldHandle& self) { return self.get()->rank(); })
      .def_prop_ro("size", [](const WorldHandle& self) { return self.get()->size(); })
      .def_prop_ro("timeout_s", &timeout_s)
      .def_prop_ro("device_index", &device_index)
      .def_prop_ro("closed", &WorldHandle::closed)
      // By value: a Topology may outlive its World.
      .def_prop_ro("topology", [](const WorldHandle& self) { return self.get()->topology(); })
      .def("network_paths", [](const WorldHandle& self) { return self.get()->network_paths(); })
      .def("time_peers", &times_of_peers, nb::kw_only(), "timeout_s"_a)
      .def("job", &job_of)
      .def("all_gather", &all_gather, "mine"_a, nb::kw_only(), "what"_a)
      .def("barrier", &barrier, nb::kw_only(), "what"_a)
      .def("cancel", [](const WorldHandle& self) { self.get()->cancel(); })
      .def("goodbye", [](const WorldHandle& self) { return self.get()->goodbye(); })
      .def("lost", [](const WorldHandle& self) { return self.get()->lost(); })
      .def("rebuild", &rebuild, "without"_a, nb::kw_only(), "arena_bytes"_a)
      .def("leave_out", &leave_out_of, "ranks"_a)
      .def("refill", &refilled, "ranks"_a, nb::kw_only(), "arena_bytes"_a, "timeout_s"_a)
      .def_prop_ro(
          "left_out", [](const WorldHandle& self) { return self.get()->left_out(); },
          "Ranks that `rebuild` left out to make this world, as they were numbered before.")
      .def_prop_ro("arena_bytes",
                   [](const WorldHandle& self) { return arena_of(*self.get()).capacity(); })
      .def_prop_ro(
          "users", [](const WorldHandle& self) { return self.get().use_count() - 1; },
          "Number of exchanges and arrays that keep the world alive.")
      .def("close", &WorldHandle::close);
}

}  // namespace tokenyard::python
