/// The functions of tokenyard/torch/core_table.hpp. No exception crosses them: each is caught and
/// passed on as a Failure.
#include "core_table.hpp"

#include "collectives.hpp"
#include "errors.hpp"
#include "registration.hpp"
#include "submit.hpp"

namespace nb = nanobind;

namespace tokenyard::core {

struct Work {
  tokenyard::Work work;
};
struct Group {
  std::shared_ptr<tokenyard::Group> group;
};
struct Failure {
  std::exception_ptr thrown;
};

}  // namespace tokenyard::core

namespace tokenyard::python {
namespace {

core::Work* submit_described(core::Group* group, const core::Operation* operation,
                             core::Failure** failure) {
  try {
    return new core::Work{submit(*group->group, *operation)};
  } catch (...) {
    *failure = new core::Failure{std::current_exception()};
    return nullptr;
  }
}

int wait(core::Work* work, int64_t timeout_ns, core::Failure** failure) {
  try {
    if (timeout_ns >= 0 && !work->work.wait_for(std::chrono::nanoseconds(timeout_ns))) return 0;
    work->work.wait();  // Throws the operation's error.
    return 1;
  } catch (...) {
    *failure = new core::Failure{std::current_exception()};
    return -1;
  }
}

core::Failure* failure_of(core::Work* work) {
  const std::exception_ptr thrown = work->work.error();
  return thrown ? new core::Failure{thrown} : nullptr;
}

void when_done(core::Work* work, void (*call)(void*), void* context) {
  work->work.when_done([call, context] { call(context); });
}

void failed_ranks(core::Work* work, void (*take)(void*, uint32_t), void* taker) {
  for (const uint32_t rank : work->work.failed_ranks()) take(taker, rank);
}

constexpr core::Table kTable{
    .version = core::kTableVersion,
    .submit = submit_described,
    .share_group = [](core::Group* group) { return new core::Group(*group); },
    .drop_group = [](core::Group* group) { delete group; },
    .share_work = [](core::Work* work) { return new core::Work(*work); },
    .drop_work = [](core::Work* work) { delete work; },
    .wait = wait,
    .done = [](core::Work* work) { return work->work.done(); },
    .failure_of = failure_of,
    .when_done = when_done,
    .source = [](core::Work* work) { return work->work.source(); },
    .parts = [](core::Group* group) { return group->group->parts(); },
    .failed_ranks = failed_ranks,
    .set_python_error = [](const core::Failure* failure) { set_python_error(failure->thrown); },
    .drop_failure = [](core::Failure* failure) { delete failure; },
};

nb::capsule group_capsule(const GroupHandle& handle) {
  const auto shared = std::shared_ptr<Group>(new Group(handle.group()), DropGroup{});
  return nb::capsule(new core::Group{shared}, core::kGroupCapsule,
                     [](void* group) noexcept { delete static_cast<core::Group*>(group); });
}

}  // namespace

void register_core_table(nb::module_& m) {
  m.def(
      "core_table", [] { return nb::capsule(&kTable, core::kTableCapsule); },
      "Returns the functions of tokenyard/torch/core_table.hpp, for torch's backend.");
  m.def("group_capsule", &group_capsule, nb::arg("group"),
        "Returns a group as a capsule, for torch's backend.");
}

}  // namespace tokenyard::python
