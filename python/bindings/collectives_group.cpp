/// Bindings of groups and of operations in progress.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "collectives.hpp"
#include "registration.hpp"
#include "seconds.hpp"
#include "submit.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tokenyard::python {

WorkHandle::~WorkHandle() {
  if (!work_) return;  // Moved from.
  if (made_.since()) {
    // Leaked: in a fork, a lock of the library may be held for ever.
    new Work(std::move(*work_));
    return;
  }
  bool done = false;
  {
    const nb::gil_scoped_release unlocked;
    done = work_->done();
  }
  if (done) return;
  // No caller waits any more, but the library still accesses the arrays. The thread that finishes
  // the operation takes the interpreter lock to release them.
  auto held = std::shared_ptr<Arrays>(new Arrays(std::move(arrays_)), [](Arrays* last) {
    const nb::gil_scoped_acquire locked;
    delete last;
  });
  const nb::gil_scoped_release unlocked;
  work_->when_done([held = std::move(held)]() mutable { held.reset(); });
  work_.reset();
}

void DropGroup::operator()(Group* group) const {
  if (made.since()) return;  // In a fork, a lock of the library may be held for ever.
  if (!nb::is_alive()) {
    delete group;
    return;
  }
  // The caller may hold the interpreter's lock or not, and the stable ABI has no call that
  // says which. So it is taken in both cases, and released while the group waits for its threads.
  const nb::gil_scoped_acquire locked;
  const nb::gil_scoped_release unlocked;
  delete group;
}

namespace {

template <class Byte>
std::vector<core::Array> described(const TypedBytes<Byte>& arrays) {
  std::vector<core::Array> result;
  result.reserve(arrays.size());
  for (const auto& [bytes, type] : arrays) {
    // Inputs are not written, although core::Array has a mutable pointer.
    result.push_back({.data = const_cast<uint8_t*>(bytes.data()),
                      .elements = bytes.size() / bytes_of(type),
                      .type = static_cast<core::Type>(type)});
  }
  return result;
}

WorkHandle submit_arrays(const GroupHandle& self, core::Kind kind, TypedBytes<const uint8_t> in,
                         TypedBytes<uint8_t> out, ReduceOp op, std::optional<uint32_t> peer,
                         uint64_t tag, std::optional<double> timeout_s, Algorithm algorithm) {
  const std::vector<core::Array> ins = described(in), outs = described(out);
  const core::Operation operation{
      .kind = kind,
      .reduction = static_cast<core::Reduction>(op),
      .algorithm = static_cast<uint8_t>(algorithm),
      .from_anybody = !peer,
      .peer = peer.value_or(0),
      .tag = tag,
      .timeout_ns = timeout_s ? nanoseconds_of(*timeout_s).count() : -1,
      .in = ins.data(),
      .ins = ins.size(),
      .out = outs.data(),
      .outs = outs.size(),
  };
  Group group = self.group();
  std::optional<Work> work;
  {
    const nb::gil_scoped_release unlocked;
    work = submit(group, operation);
  }
  return WorkHandle(std::move(*work), {.in = std::move(in), .out = std::move(out)});
}

/// Calls a member of Work without the interpreter lock.
template <class Call>
auto unlocked(WorkHandle& self, Call&& call) {
  const nb::gil_scoped_release unlocked;
  return call(self.work());
}

void when_done(WorkHandle& self, nb::callable call) {
  const auto held =
      std::shared_ptr<nb::callable>(new nb::callable(std::move(call)), [](auto* last) {
        const nb::gil_scoped_acquire locked;
        delete last;
      });
  unlocked(self, [&](Work& work) {
    work.when_done([held] {
      const nb::gil_scoped_acquire locked;
      try {
        (*held)();
      } catch (nb::python_error& error) {
        error.discard_as_unraisable("a callback of a finished operation");
      }
    });
  });
}

void raise_error(WorkHandle& self) {
  const std::exception_ptr error = unlocked(self, [](Work& work) { return work.error(); });
  if (error) std::rethrow_exception(error);
}

void register_work(nb::module_& m) {
  nb::class_<WorkHandle>(m, "Work", "An operation in progress; see tokenyard.Work.")
      .def("wait", [](WorkHandle& self) { unlocked(self, [](Work& work) { work.wait(); }); })
      .def(
          "wait_for",
          [](WorkHandle& self, double seconds) {
            return unlocked(self, [&](Work& work) {
              if (!work.wait_for(nanoseconds_of(seconds))) return false;
              work.wait();  // Throws the operation's error.
              return true;
            });
          },
          "seconds"_a)
      .def("done",
           [](WorkHandle& self) { return unlocked(self, [](Work& work) { return work.done(); }); })
      .def("raise_error", &raise_error)
      .def("when_done", &when_done, "call"_a)
      .def(
          "source",
          [](WorkHandle& self) { return unlocked(self, [](Work& work) { return work.source(); }); })
      .def("failed_ranks",
           [](WorkHandle& self) {
             return unlocked(self, [](Work& work) { return work.failed_ranks(); });
           })
      .def("choice", [](WorkHandle& self) {
        return unlocked(self, [](Work& work) { return work.choice(); });
      });
}

}  // namespace

void register_group(nb::module_& m) {
  nb::enum_<core::Kind>(m, "Kind", "Kinds of operations for Group.submit.")
      .value("all_reduce", core::Kind::all_reduce)
      .value("reduce", core::Kind::reduce)
      .value("broadcast", core::Kind::broadcast)
      .value("all_gather", core::Kind::all_gather)
      .value("gather", core::Kind::gather)
      .value("scatter", core::Kind::scatter)
      .value("reduce_scatter", core::Kind::reduce_scatter)
      .value("all_to_all", core::Kind::all_to_all)
      .value("barrier", core::Kind::barrier)
      .value("monitored_barrier", core::Kind::monitored_barrier)
      .value("send", core::Kind::send)
      .value("receive", core::Kind::receive);
  register_work(m);
  nb::class_<GroupHandle>(m, "Group", "Ranks that run operations together; see tokenyard.Group.")
      .def_prop_ro("rank", [](const GroupHandle& self) { return self.group().rank(); })
      .def_prop_ro("size",
                   [](const GroupHandle& self) {
                     const nb::gil_scoped_release unlocked;
                     return self.group().size();
                   })
      .def_prop_ro("name", [](const GroupHandle& self) { return self.group().name(); })
      .def_prop_ro("parts",
                   [](const GroupHandle& self) {
                     const nb::gil_scoped_release unlocked;
                     return self.group().parts();
                   })
      .def_prop_ro("closed", [](const GroupHandle& self) { return self.group().closed(); })
      .def("close",
           [](const GroupHandle& self) {
             const nb::gil_scoped_release unlocked;
             self.group().close();
           })
      .def("active_ranks",
           [](const GroupHandle& self) {
             const nb::gil_scoped_release unlocked;
             return self.group().active_ranks();
           })
      .def("submit", &submit_arrays, "kind"_a, nb::kw_only(), "given"_a.noconvert(),
           "out"_a.noconvert(), "op"_a, "peer"_a.none(), "tag"_a, "timeout_s"_a.none(),
           "algorithm"_a)
      .def(
          "choice",
          [](const GroupHandle& self, const std::string& operation, size_t bytes) {
            const nb::gil_scoped_release unlocked;
            return self.group().choice(operation, bytes);
          },
          "operation"_a, "bytes"_a);
}

}  // namespace tokenyard::python
