#include "job.hpp"

#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "control/host_secret.hpp"
#include "interrupt.hpp"
#include "own_store.hpp"
#include "registration.hpp"
#include "seconds.hpp"
#include "world.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tokenyard::python {

void refuse_fork() {
  throw InvalidArgument("job", "a call in the process that made it", "a call in its fork");
}

std::shared_ptr<Job> JobHandle::get() const {
  if (job_ && made_.since()) refuse_fork();
  if (!job_) throw InvalidArgument("job", "an open Job", "a closed one");
  return job_;
}

void JobHandle::close() {
  std::shared_ptr<Job> last = std::exchange(job_, nullptr);
  if (!last) return;
  if (made_.since()) {
    new std::shared_ptr<Job>(std::move(last));  // Leaked: none of its threads runs here.
    return;
  }
  const nb::gil_scoped_acquire locked;
  const nb::gil_scoped_release unlocked;
  if (founds_) last->cancel();
  last.reset();
}

OnFailure on_failure_of(const std::string& name) {
  if (name == "raise") return OnFailure::raise;
  if (name == "retry") return OnFailure::retry;
  if (name == "exclude") return OnFailure::exclude;
  throw InvalidArgument("on_failure", "'raise', 'retry' or 'exclude'", "'" + name + "'");
}

namespace {

Places places_of(const std::string& name) {
  if (name == "kept") return Places::kept;
  if (name == "compact") return Places::compact;
  throw InvalidArgument("places", "'kept' or 'compact'", "'" + name + "'");
}

std::unique_ptr<JobHandle> enter_job(
    const std::string& entrance, const std::string& store, const nb::object& own_store,
    bool host_store, const std::string& job, const std::string& secret, uint32_t rank,
    uint32_t size, std::optional<uint32_t> local_rank, uint32_t size_max,
    const std::string& address, const std::string& host, double timeout_s, double silence_s,
    const std::string& on_failure, const std::string& places, size_t eager_limit, bool witness) {
  const JobOptions options{
      .store = store,
      .host_store = host_store,
      .own_store = own_store.is_none() ? nullptr : own_store_of(own_store),
      .job = job,
      .secret = secret.empty() ? control::host_secret() : secret,
      .rank = rank,
      .size = size,
      .local_rank = local_rank,
      .size_max = size_max,
      .address = address,
      .host = host,
      .timeout = nanoseconds_of(timeout_s),
      .silence = nanoseconds_of(silence_s),
      .on_failure = on_failure_of(on_failure),
      .places = places_of(places),
      .eager_limit = eager_limit,
      .witness = witness,
      .interrupt = Interrupt(),
  };
  std::shared_ptr<Job> made;
  {
    const nb::gil_scoped_release unlocked;
    made = entrance == "join"    ? Job::join(options)
           : entrance == "alone" ? Job::alone(options)
                                 : Job::connect(options);
  }
  return std::make_unique<JobHandle>(std::move(made), true);
}

/// The result of `on_change`: callbacks end when it is dropped.
struct Listening {
  std::shared_ptr<void> held;
  void stop() {
    const nb::gil_scoped_release unlocked;
    held.reset();
  }
};

std::unique_ptr<Listening> on_change(const JobHandle& self, nb::callable call) {
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
  return std::make_unique<Listening>(
      unlocked(self, [&](Job& job) { return job.on_change(std::move(guarded)); }));
}

std::unique_ptr<JobHandle> share_job(const JobHandle& self) {
  return std::make_unique<JobHandle>(self.get(), false);
}

std::unique_ptr<WorldHandle> make_world(const JobHandle& self, const std::string& device,
                                        double timeout_s, size_t arena_bytes,
                                        const NetworkOptions& network, bool compact) {
  const WorldOptions options{.timeout = nanoseconds_of(timeout_s),
                             .arena_bytes = arena_bytes,
                             .network = network,
                             .compact = compact,
                             .interrupt = Interrupt()};
  return unlocked(
      self, [&](Job& job) { return std::make_unique<WorldHandle>(job.world(device, options)); });
}

nb::dict job_metrics(const JobHandle& self) {
  const JobMetrics counted = unlocked(self, [](Job& job) { return job.metrics(); });
  nb::dict all;
  all["epoch"] = counted.epoch;
  all["places"] = counted.slots;
  all["active_ranks"] = counted.active;
  all["waiting_ranks"] = counted.waiting;
  all["joined"] = counted.joined;
  all["lost"] = counted.lost;
  all["left"] = counted.left;
  all["epochs"] = counted.epochs;
  all["excused"] = counted.excused;
  all["stalls"] = counted.stalls;
  all["heartbeats_late"] = counted.heartbeats_late;
  all["quorums_missed"] = counted.quorums_missed;
  all["links_made"] = counted.links_made;
  all["links_lost"] = counted.links_lost;
  all["refused"] = counted.refused;
  return all;
}

}  // namespace

nb::class_<JobHandle> register_job(nb::module_& m) {
  nb::class_<Listening>(m, "Listening", "A registered callback; dropping it ends the calls.")
      .def("stop", &Listening::stop, "Ends the calls.");
  nb::class_<JobHandle> job(m, "Job", "See tokenyard.Job.");
  job.def_static("enter", &enter_job, nb::kw_only(), "entrance"_a, "store"_a, "own_store"_a.none(),
                 "host_store"_a, "job"_a, "secret"_a, "rank"_a, "size"_a, "local_rank"_a.none(),
                 "size_max"_a, "address"_a, "host"_a, "timeout_s"_a, "silence_s"_a, "on_failure"_a,
                 "places"_a, "eager_limit"_a, "witness"_a)
      .def_prop_ro("closed", &JobHandle::closed)
      .def_prop_ro(
          "rank",
          [](const JobHandle& self) { return unlocked(self, [](Job& of) { return of.rank(); }); })
      .def_prop_ro(
          "size",
          [](const JobHandle& self) { return unlocked(self, [](Job& of) { return of.size(); }); })
      .def("share", &share_job, "Returns another handle of the job, whose end ends nothing.")
      .def("world", &make_world, nb::kw_only(), "device"_a, "timeout_s"_a, "arena_bytes"_a,
           "network"_a, "compact"_a = false)
      .def("metrics", &job_metrics)
      .def("active_ranks",
           [](const JobHandle& self) {
             return unlocked(self, [](Job& of) { return of.active_ranks(); });
           })
      .def("waiting",
           [](const JobHandle& self) {
             return unlocked(self, [](Job& of) { return of.waiting(); });
           })
      .def("epoch",
           [](const JobHandle& self) { return unlocked(self, [](Job& of) { return of.epoch(); }); })
      .def("on_change", &on_change, "call"_a)
      .def(
          "shrink",
          [](const JobHandle& self) { return unlocked(self, [](Job& of) { return of.shrink(); }); })
      .def(
          "replace",
          [](const JobHandle& self, uint32_t rank, std::optional<double> timeout_s) {
            unlocked(self, [&](Job& of) { of.replace(rank, nanoseconds_of(timeout_s)); });
          },
          "rank"_a, nb::kw_only(), "timeout_s"_a.none())
      .def(
          "grow",
          [](const JobHandle& self, uint32_t ranks, std::optional<double> timeout_s) {
            unlocked(self, [&](Job& of) { of.grow(ranks, nanoseconds_of(timeout_s)); });
          },
          "ranks"_a, nb::kw_only(), "timeout_s"_a.none())
      .def(
          "recover",
          [](const JobHandle& self, bool wait_for_replacements, std::optional<double> timeout_s) {
            return unlocked(self, [&](Job& of) {
              return of.recover(wait_for_replacements, nanoseconds_of(timeout_s));
            });
          },
          nb::kw_only(), "wait_for_replacements"_a, "timeout_s"_a.none())
      .def(
          "evict",
          [](const JobHandle& self, uint32_t rank, std::optional<double> timeout_s) {
            unlocked(self, [&](Job& of) { of.evict(rank, nanoseconds_of(timeout_s)); });
          },
          "rank"_a, nb::kw_only(), "timeout_s"_a.none())
      .def("leave", [](const JobHandle& self) { unlocked(self, [](Job& of) { of.leave(); }); })
      .def("cancel", [](const JobHandle& self) { unlocked(self, [](Job& of) { of.cancel(); }); })
      .def("close", &JobHandle::close);
  return job;
}

}  // namespace tokenyard::python
