/// The functions of tokenyard/torch/core_table.hpp. No exception crosses them: each is caught and
/// passed on as a Failure.
#include "core_table.hpp"

#include <atomic>
#include <mutex>

#include "collectives.hpp"
#include "device_collectives.hpp"
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
/// Threads of torch take turns. None of them holds Python's lock while it waits for its turn, or
/// during it: a call may wait for other ranks on the host.
struct Device {
  struct Shared {
    std::shared_ptr<python::HeldDeviceCollectives> held;
    std::mutex mutex;
    std::atomic<bool> retired = false;
  };
  std::shared_ptr<Shared> shared;
};
struct DeviceTicket {
  std::shared_ptr<Device::Shared> shared;
  device_collectives::CallTicket call;
  bool is_of_messages;
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

/// Calls `body` with device collectives; returns what it throws.
template <class Body>
core::Failure* guarded(core::Device* device, const Body& body) {
  try {
    const std::lock_guard lock(device->shared->mutex);
    body(device->shared->held->collectives);
    return nullptr;
  } catch (...) {
    return new core::Failure{std::current_exception()};
  }
}

using device_collectives::Call;
using device_collectives::DeviceCollectives;

Call call_in(uint64_t stream, int64_t timeout_ns) {
  Call call{.stream = Stream(stream)};
  call.timeout = std::chrono::nanoseconds(timeout_ns);
  return call;
}

/// Enqueues a call that is described by plain values.
void start(DeviceCollectives& all, const core::DeviceCall& given, const Call& call,
           uint32_t ranks) {
  const auto type = static_cast<DataType>(given.type);
  ConstTensorView in;
  TensorView out;
  if (given.in != nullptr) in = {given.in, type, {given.in_elements}};
  if (given.out != nullptr) out = {given.out, type, {given.out_elements}};
  const device_collectives::Reduction by(static_cast<ReduceOp>(given.reduction), given.factor);
  const auto counts = [&](const uint64_t* of) { return std::vector<uint64_t>(of, of + ranks); };
  const bool uneven = given.sent != nullptr;
  switch (given.kind) {
    case core::Kind::all_reduce:
      return all.all_reduce(in, out, by, call);
    case core::Kind::reduce:
      return all.reduce(in, out, by, given.root, call);
    case core::Kind::broadcast:
      return all.broadcast(out, given.root, call);
    case core::Kind::all_gather:
      return uneven ? all.all_gather(in, out, counts(given.sent), call)
                    : all.all_gather(in, out, call);
    case core::Kind::gather:
      return all.gather(in, out, given.root, call);
    case core::Kind::scatter:
      return all.scatter(in, out, given.root, call);
    case core::Kind::reduce_scatter:
      return uneven ? all.reduce_scatter(in, out, by, counts(given.sent), call)
                    : all.reduce_scatter(in, out, by, call);
    case core::Kind::all_to_all:
      return uneven ? all.all_to_all(in, out, {counts(given.sent), counts(given.received)}, call)
                    : all.all_to_all(in, out, call);
    case core::Kind::barrier:
      return all.barrier(call);
    default:
      throw InvalidArgument("kind", "a collective", "another operation");
  }
}

core::Failure* device_call(core::Device* device, const core::DeviceCall* given,
                           core::DeviceTicket** ticket) {
  const uint32_t ranks = device->shared->held->world->size();
  return guarded(device, [&](DeviceCollectives& all) {
    start(all, *given, call_in(given->stream, given->timeout_ns), ranks);
    *ticket = new core::DeviceTicket{device->shared, all.last_call(), false};
  });
}

core::Failure* device_failure(core::DeviceTicket* ticket, bool ended) {
  const std::lock_guard lock(ticket->shared->mutex);
  const std::exception_ptr thrown = ticket->is_of_messages
                                        ? DeviceCollectives::error_of_messages(ticket->call)
                                        : DeviceCollectives::error_of(ticket->call, ended);
  return thrown ? new core::Failure{thrown} : nullptr;
}

core::Failure* device_exchange(core::Device* device, const core::DeviceMessage* messages,
                               uint64_t count, uint64_t stream, int64_t timeout_ns,
                               core::DeviceTicket** ticket) {
  return guarded(device, [&](DeviceCollectives& all) {
    std::vector<device_collectives::Send> sends;
    std::vector<device_collectives::Receive> receives;
    for (const auto& message : std::span(messages, count)) {
      const TensorView view{message.data, static_cast<DataType>(message.type), {message.elements}};
      if (message.receives)
        receives.push_back({view, message.peer, message.tag});
      else
        sends.push_back({view, message.peer, message.tag});
    }
    all.exchange(sends, receives, call_in(stream, timeout_ns));
    *ticket = new core::DeviceTicket{device->shared, all.last_call(), true};
  });
}

nb::capsule device_capsule(const DeviceCollectivesHandle& handle) {
  auto shared = std::make_shared<core::Device::Shared>();
  shared->held = handle.get();
  return nb::capsule(new core::Device{std::move(shared)}, core::kDeviceCapsule,
                     [](void* device) noexcept { delete static_cast<core::Device*>(device); });
}

/// Waits for calls that were made before, also those of other threads.
void retire_device(const nb::capsule& device) {
  auto* const retired = static_cast<core::Device*>(device.data());
  retired->shared->retired = true;
  const nb::gil_scoped_release unlocked;
  const std::lock_guard lock(retired->shared->mutex);
  retired->shared->held->collectives.settle();
}

/// Waits on the host for all work of a stream, then throws the error of a failed call.
void await_device(const nb::capsule& device, uint64_t stream) {
  auto* const awaited = static_cast<core::Device*>(device.data());
  const nb::gil_scoped_release unlocked;
  const std::lock_guard lock(awaited->shared->mutex);
  awaited->shared->held->collectives.wait(Stream(stream));
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
    .share_device = [](core::Device* device) { return new core::Device(*device); },
    .drop_device = [](core::Device* device) { delete device; },
    .device_retired = [](core::Device* device) { return device->shared->retired.load(); },
    .device_call = device_call,
    .device_exchange = device_exchange,
    .device_failure = device_failure,
    .drop_ticket = [](core::DeviceTicket* ticket) { delete ticket; },
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
  m.def("device_capsule", &device_capsule, nb::arg("collectives"),
        "Returns collectives on device tensors as a capsule, for torch's backend.");
  m.def("retire_device", &retire_device, nb::arg("device"),
        "Makes torch's backend ask for other device collectives before its next call, and waits "
        "for the calls that were made.");
  m.def("await_device", &await_device, nb::arg("device"), nb::kw_only(), nb::arg("stream"),
        "Waits for all work of a stream, then raises the error of a failed call.");
  m.def("group_capsule", &group_capsule, nb::arg("group"),
        "Returns a group as a capsule, for torch's backend.");
}

}  // namespace tokenyard::python
