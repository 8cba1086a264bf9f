/// Translates the library's exceptions to the classes of tokenyard/errors.py, with their fields.
/// The classes are written in Python, where they have a second base, pickling and docstrings.
#include "errors.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <system_error>

#include "registration.hpp"
#include "tokenyard/error.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tokenyard::python {
namespace {

template <class... Fields>
void set_error(const char* name, const std::exception& error, Fields&&... fields) {
  const nb::object type = nb::module_::import_("tokenyard.errors").attr(name);
  const nb::object value = type(nb::str(error.what()), std::forward<Fields>(fields)...);
  PyErr_SetObject(type.ptr(), value.ptr());
}

template <class... Fields>
void set_wait_error(const char* name, const Error& error, const WaitFacts& facts,
                    Fields&&... fields) {
  set_error(name, error, "rank"_a = facts.rank, "phase"_a = facts.phase,
            "expected"_a = facts.expected, "seen"_a = facts.seen, "waited_s"_a = facts.waited_s,
            std::forward<Fields>(fields)...);
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const megakernel::InvalidGraph& error) {
    set_error("InvalidGraph", error, "argument"_a = error.argument, "expected"_a = error.expected,
              "seen"_a = error.seen, "rank"_a = error.rank,
              "fault"_a = megakernel::name(error.fault), "witness"_a = error.witness,
              "fix"_a = error.fix);
  } catch (const InvalidArgument& error) {
    set_error("InvalidArgument", error, "argument"_a = error.argument,
              "expected"_a = error.expected, "seen"_a = error.seen, "rank"_a = error.rank);
  } catch (const megakernel::TaskTimeout& error) {
    set_wait_error("TaskTimeout", error, error.facts, "dump"_a = error.dump);
  } catch (const PeerTimeout& error) {
    set_wait_error("PeerTimeout", error, error.facts);
  } catch (const PeerLost& error) {
    set_wait_error("PeerLost", error, error.facts);
  } catch (const OutOfTouch& error) {
    std::optional<double> since;
    if (error.since) since = std::chrono::duration<double>(error.since->time_since_epoch()).count();
    set_error("OutOfTouch", error, "rank"_a = error.facts.rank, "phase"_a = error.facts.phase,
              "since"_a = since, "absent_s"_a = error.absent_s, "left_out"_a = error.left_out);
  } catch (const Cancelled& error) {
    set_error("Cancelled", error, "phase"_a = error.phase);
  } catch (const OperationAborted& error) {
    set_error("OperationAborted", error, "operation"_a = error.operation,
              "sequence"_a = error.sequence, "epoch"_a = error.epoch, "lost"_a = error.lost);
  } catch (const QuorumLost& error) {
    set_error("QuorumLost", error, "answering"_a = error.answering, "needed"_a = error.needed);
  } catch (const Fenced& error) {
    set_error("Fenced", error, "epoch"_a = error.epoch);
  } catch (const NetworkFault& error) {
    const NetworkFault::Facts& facts = error.facts;
    set_error("NetworkFault", error, "rank"_a = facts.rank, "peer"_a = facts.peer,
              "queue"_a = facts.queue, "region"_a = facts.region, "check"_a = facts.check,
              "phase"_a = facts.phase, "expected"_a = facts.expected, "seen"_a = facts.seen,
              "cause"_a = facts.cause);
  } catch (const Unsupported& error) {
    set_error("Unsupported", error, "asked"_a = error.what_asked, "why"_a = error.why);
  } catch (const OsError& error) {
    set_error("OsError", error, "call"_a = error.call, "code"_a = error.code);
  } catch (const InternalError& error) {
    set_error("InternalError", error);
  } catch (const Error& error) {
    set_error("Error", error);
  } catch (const std::system_error& error) {
    // A system call of the standard library failed: most likely the creation of a thread.
    set_error("OsError", error, "call"_a = "the C++ library", "code"_a = error.code().value());
  }
}

}  // namespace

void set_python_error(const std::exception_ptr& thrown) {
  try {
    translate(thrown, nullptr);
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

void register_errors(nb::module_&) {
  nb::register_exception_translator(translate);
}

}  // namespace tokenyard::python
