#include "collectives.hpp"

#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "interrupt.hpp"
#include "own_store.hpp"
#include "registration.hpp"
#include "seconds.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tokenyard::python {

CollectivesHandle::CollectivesHandle(std::unique_ptr<Collectives> collectives)
    : collectives_(shared_and_destroyed_unlocked(std::move(collectives))) {}

void refuse_fork() {
  throw InvalidArgument("collectives", "a call in the process that made it", "a call in its fork");
}

std::shared_ptr<Collectives> CollectivesHandle::get() const {
  if (collectives_ && made_.since()) refuse_fork();
  if (!collectives_) throw InvalidArgument("collectives", "an open Collectives", "a closed one");
  return collectives_;
}

void CollectivesHandle::close() {
  const std::shared_ptr<Collectives> last = std::exchange(collectives_, nullptr);
  if (!last || made_.since()) return;
  const nb::gil_scoped_release unlocked;
  last->cancel();
}

namespace {

/// Takes a name, since `raise` cannot be an enumerator in Python.
OnFailure on_failure_of(const std::string& name) {
  if (name == "raise") return OnFailure::raise;
  if (name == "retry") return OnFailure::retry;
  if (name == "exclude") return OnFailure::exclude;
  throw InvalidArgument("on_failure", "'raise', 'retry' or 'exclude'", "'" + name + "'");
}

Places places_of(const std::string& name) {
  if (name == "kept") return Places::kept;
  if (name == "compact") return Places::compact;
  throw InvalidArgument("places", "'kept' or 'compact'", "'" + name + "'");
}

using Handle = std::unique_ptr<CollectivesHandle>;

Handle join_rendezvous(const std::string& entrance, const std::string& store,
                       const nb::object& own_store, bool host_store, const std::string& job,
                       const std::string& secret, uint32_t rank, uint32_t size, uint32_t size_max,
                       const std::string& address, const std::string& host,
                       const std::string& interconnect, double timeout_s, double silence_s,
                       const std::string& on_failure, const std::string& places, bool witness) {
  const CollectivesOptions options{
      .store = store,
      .host_store = host_store,
      .own_store = own_store.is_none() ? nullptr : own_store_of(own_store),
      .job = job,
      .secret = secret,
      .rank = rank,
      .size = size,
      .size_max = size_max,
      .address = address,
      .host = host,
      .interconnect = interconnect,
      .timeout = nanoseconds_of(timeout_s),
      .silence = nanoseconds_of(silence_s),
      .on_failure = on_failure_of(on_failure),
      .places = places_of(places),
      .witness = witness,
      .interrupt = Interrupt(),
  };
  std::unique_ptr<Collectives> made;
  {
    const nb::gil_scoped_release unlocked;
    made = entrance == "join"    ? Collectives::join(options)
           : entrance == "alone" ? Collectives::alone(options)
                                 : Collectives::connect(options);
  }
  return std::make_unique<CollectivesHandle>(std::move(made));
}

/// Calls a member of Collectives without the interpreter lock.
template <class Call>
auto unlocked(const CollectivesHandle& self, Call&& call) {
  const std::shared_ptr<Collectives> collectives = self.get();
  const nb::gil_scoped_release unlocked;
  return call(*collectives);
}

GroupHandle group(const CollectivesHandle& self, const std::vector<uint32_t>& ranks,
                  const std::string& name, std::optional<double> timeout_s) {
  return unlocked(self, [&](Collectives& collectives) {
    return GroupHandle(collectives.group(ranks, name, nanoseconds_of(timeout_s)));
  });
}

/// The result of `on_change`: callbacks end when it is dropped.
struct Listening {
  std::shared_ptr<void> held;
  void stop() {
    const nb::gil_scoped_release unlocked;
    held.reset();
  }
};

std::unique_ptr<Listening> on_change(const CollectivesHandle& self, nb::callable call) {
  // The library copies the function and drops it on threads without the interpreter lock.
  const auto held =
      std::shared_ptr<nb::callable>(new nb::callable(std::move(call)), [](auto* last) {
        const nb::gil_scoped_acquire locked;
        delete last;
      });
  auto guarded = [held] {
    const nb::gil_scoped_acquire locked;
    try {
      (*held)();
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("a callback on a change of the membership");
    }
  };
  return std::make_unique<Listening>(unlocked(
      self, [&](Collectives& collectives) { return collectives.on_change(std::move(guarded)); }));
}

void register_enums(nb::module_& m) {
  nb::enum_<DataType> type(m, "DataType");
  for (int value = 0; value <= int(DataType::float8_e4m3fn); ++value)
    type.value(name_of(DataType(value)).c_str(), DataType(value));
  nb::enum_<ReduceOp> op(m, "ReduceOp");
  for (int value = 0; value <= int(ReduceOp::bit_xor); ++value)
    op.value(name_of(ReduceOp(value)).c_str(), ReduceOp(value));
  nb::enum_<Algorithm> algorithm(m, "Algorithm");
  for (int value = 0; value <= int(Algorithm::direct); ++value)
    algorithm.value(name_of(Algorithm(value)).c_str(), Algorithm(value));
}

}  // namespace

void register_collectives(nb::module_& m) {
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
  nb::class_<Listening>(m, "Listening", "A registered callback; dropping it ends the calls.")
      .def("stop", &Listening::stop, "Ends the calls.");
  nb::class_<CollectivesHandle>(m, "Collectives", "See tokenyard.Collectives.")
      .def_static("join_rendezvous", &join_rendezvous, nb::kw_only(), "entrance"_a, "store"_a,
                  "own_store"_a.none(), "host_store"_a, "job"_a, "secret"_a, "rank"_a, "size"_a,
                  "size_max"_a, "address"_a, "host"_a, "interconnect"_a, "timeout_s"_a,
                  "silence_s"_a, "on_failure"_a, "places"_a, "witness"_a)
      .def_prop_ro("closed", &CollectivesHandle::closed)
      .def_prop_ro("rank", [](const CollectivesHandle& self) { return self.get()->rank(); })
      .def_prop_ro("size",
                   [](const CollectivesHandle& self) {
                     return unlocked(self, [](Collectives& of) { return of.size(); });
                   })
      .def("world", [](const CollectivesHandle& self) { return GroupHandle(self.get()->world()); })
      .def("group", &group, "ranks"_a, "name"_a, nb::kw_only(), "timeout_s"_a.none())
      .def("active_ranks",
           [](const CollectivesHandle& self) {
             return unlocked(self, [](Collectives& of) { return of.active_ranks(); });
           })
      .def("waiting_ranks",
           [](const CollectivesHandle& self) {
             return unlocked(self, [](Collectives& of) { return of.waiting_ranks(); });
           })
      .def("epoch",
           [](const CollectivesHandle& self) {
             return unlocked(self, [](Collectives& of) { return of.epoch(); });
           })
      .def("on_change", &on_change, "call"_a)
      .def("shrink",
           [](const CollectivesHandle& self) {
             return unlocked(self, [](Collectives& of) { return of.shrink(); });
           })
      .def(
          "replace",
          [](const CollectivesHandle& self, uint32_t rank, std::optional<double> timeout_s) {
            unlocked(self, [&](Collectives& of) { of.replace(rank, nanoseconds_of(timeout_s)); });
          },
          "rank"_a, nb::kw_only(), "timeout_s"_a.none())
      .def(
          "grow",
          [](const CollectivesHandle& self, uint32_t ranks, std::optional<double> timeout_s) {
            unlocked(self, [&](Collectives& of) { of.grow(ranks, nanoseconds_of(timeout_s)); });
          },
          "ranks"_a, nb::kw_only(), "timeout_s"_a.none())
      .def(
          "recover",
          [](const CollectivesHandle& self, bool wait_for_replacements,
             std::optional<double> timeout_s) {
            return unlocked(self, [&](Collectives& of) {
              return of.recover(wait_for_replacements, nanoseconds_of(timeout_s));
            });
          },
          nb::kw_only(), "wait_for_replacements"_a, "timeout_s"_a.none())
      .def(
          "evict",
          [](const CollectivesHandle& self, uint32_t rank, std::optional<double> timeout_s) {
            unlocked(self, [&](Collectives& of) { of.evict(rank, nanoseconds_of(timeout_s)); });
          },
          "rank"_a, nb::kw_only(), "timeout_s"_a.none())
      .def("leave",
           [](const CollectivesHandle& self) {
             unlocked(self, [](Collectives& of) { of.leave(); });
           })
      .def("cancel",
           [](const CollectivesHandle& self) {
             unlocked(self, [](Collectives& of) { of.cancel(); });
           })
      .def("counters",
           [](const CollectivesHandle& self) {
             return unlocked(self, [](Collectives& of) { return of.counters(); });
           })
      .def("close", &CollectivesHandle::close);
}

}  // namespace tokenyard::python
