#include "collectives.hpp"

#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "registration.hpp"
#include "seconds.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tokenyard::python {

namespace {

/// The group of all ranks.
GroupHandle world_group(const JobHandle& self) {
  return unlocked(self, [](Job& job) { return GroupHandle(job.collectives()->world()); });
}

CollectivesCounters counters(const JobHandle& self) {
  return unlocked(self, [](Job& job) { return job.collectives()->counters(); });
}

GroupHandle group(const JobHandle& self, const std::vector<uint32_t>& ranks,
                  const std::string& name, std::optional<double> timeout_s,
                  std::optional<size_t> eager_limit) {
  return unlocked(self, [&](Job& job) {
    return GroupHandle(
        job.collectives()->group(ranks, name, nanoseconds_of(timeout_s), eager_limit));
  });
}

void register_enums(nb::module_& m) {
  nb::enum_<DataType> type(m, "DataType");
  for (int value = 0; value <= int(DataType::float8_e5m2); ++value)
    type.value(name_of(DataType(value)).c_str(), DataType(value));
  nb::enum_<ReduceOp> op(m, "ReduceOp");
  for (int value = 0; value <= int(ReduceOp::bit_xor); ++value)
    op.value(name_of(ReduceOp(value)).c_str(), ReduceOp(value));
  nb::enum_<Algorithm> algorithm(m, "Algorithm");
  for (int value = 0; value <= int(Algorithm::direct); ++value)
    algorithm.value(name_of(Algorithm(value)).c_str(), Algorithm(value));
}

}  // namespace

void register_collectives(nb::module_& m, nb::class_<JobHandle>& job) {
  register_enums(m);
  nb::class_<CollectivesCounters>(m, "CollectivesCounters", "Counts of a rank since its start.")
      .def_ro("operations", &CollectivesCounters::operations, "Operations started.")
      .def_ro("committed", &CollectivesCounters::committed, "Operations committed.")
      .def_ro("aborted", &CollectivesCounters::aborted, "Operations undone.")
      .def_ro("retried", &CollectivesCounters::retried, "Operations run again.")
      .def_ro("bytes_sent", &CollectivesCounters::bytes_sent,
              "Bytes sent by operations, headers included.")
      .def_ro("refused", &CollectivesCounters::refused,
              "Rejected connections and messages: unauthenticated, of other jobs, or of old "
              "epochs.")
      .def_ro("epochs", &CollectivesCounters::epochs, "Changes of the membership.");
  job.def("world_group", &world_group)
      .def("group", &group, "ranks"_a, "name"_a, nb::kw_only(), "timeout_s"_a.none(),
           "eager_limit"_a.none())
      .def("counters", &counters);
}

}  // namespace tokenyard::python
