#include "collectives/device/host/device_collectives.hpp"

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <utility>

#include "collectives/device/host/agreed_options.hpp"
#include "collectives/device/host/collective_calls.hpp"
#include "collectives/device/host/pair_calls.hpp"
#include "collectives/device/host/parts.hpp"
#include "collectives/device/host/session.hpp"
#include "fabric/on_failure.hpp"
#include "fabric/sessions.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::device_collectives {

namespace {

const char* text_of(OnFailure on_failure) {
  return on_failure == OnFailure::retry     ? "retry"
         : on_failure == OnFailure::exclude ? "exclude"
                                            : "raise";
}

/// Checks this rank's options.
void check_on_failure(const World& world, const Options& options) {
  if (options.keep_inputs && options.arena_tensors)
    throw InvalidArgument("arena_tensors",
                          "false with keep_inputs: late stores would follow what is put back",
                          "true");
  if (options.on_failure == OnFailure::raise) return;
  if (!options.keep_inputs)
    throw InvalidArgument(
        "keep_inputs",
        fmt::format("true, for on_failure \"{}\" makes a call again from its inputs",
                    text_of(options.on_failure)),
        "false");
  const std::optional<OnFailure> of_job = on_failure_of(world);
  if (of_job != options.on_failure)
    throw InvalidArgument("on_failure", "\"raise\", or that of the job which the world follows",
                          text_of(options.on_failure));
}

}  // namespace

struct DeviceCollectives::Impl {
  Impl(World& world, const Options& options, std::shared_ptr<Session> follows)
      : options(options), follows(std::move(follows)), sessions(world, make) {
    this->follows.reset();
    undone = sessions.last().undone();
  }

  /// Returns the session of the next call.
  Session& for_call(Stream stream) {
    require_open();
    Session& session =
        sessions.for_call(stream, make, [this](Session&, Session& now) { undone = now.undone(); });
    if (undone) throw *std::exchange(undone, std::nullopt);
    return session;
  }
  /// Makes a collective call, and makes it again after a failure as the options say.
  template <class Body>
  void run(const char* name, const Call& call, const Body& body) {
    if (options.on_failure == OnFailure::raise) return once(name, call, body);
    for (;;) {
      try {
        once(name, call, body);
        Session& session = sessions.last();
        session.await(call.stream, "the end of a call that may be made again");
        session.check();
        return;
      } catch (const PeerLost& error) {
        if (!continue_job_after(sessions.world(), error.facts.rank, false)) throw;
      } catch (const PeerTimeout& error) {
        if (!continue_job_after(sessions.world(), error.facts.rank, true)) throw;
      }
    }
  }
  void start(const Request& request, const Call& call) {
    run(name_of(request.operation), call,
        [&](Session& session) { CollectiveCalls(session).start(request, call); });
  }
  void require_open() const {
    if (closed) throw InvalidArgument("collectives", "open ones", "closed ones");
  }
  void check() const {
    require_open();
    for (const auto& session : sessions.captured())
      if (session->take_replay())
        throw InvalidArgument(
            "graph", "a CUDA graph that was captured since the ranks have changed: capture it anew",
            fmt::format("the replay of one of epoch {}", membership_epoch_of(*session->world)));
    sessions.now()->check();
  }

  const Options options;
  std::shared_ptr<Session> follows;  ///< another object's, until this one has made its own
  bool closed = false;
  std::optional<OperationAborted> undone;  ///< is still to be thrown
  const std::function<std::shared_ptr<Session>(std::shared_ptr<World>, Session*)> make =
      [this](std::shared_ptr<World> world, Session* before) {
        return std::make_shared<Session>(std::move(world), this->options,
                                         before != nullptr ? before : this->follows.get());
      };
  Sessions<Session> sessions;

 private:
  template <class Body>
  void once(const char* name, const Call& call, const Body& body) {
    Session& session = for_call(call.stream);
    session.check();
    const bool counts = !session.accelerator.captures(call.stream);
    if (counts) session.log.begin(name);
    try {
      body(session);
    } catch (...) {
      if (counts) session.log.give_up();
      throw;
    }
    if (counts) session.log.end();
  }
};

DeviceCollectives::DeviceCollectives(World& world, const Options& options,
                                     DeviceCollectives* before) {
  check_on_failure(world, options);
  impl_ = std::make_unique<Impl>(world, options,
                                 before == nullptr ? nullptr : before->impl_->sessions.now());
}
DeviceCollectives::~DeviceCollectives() = default;

void DeviceCollectives::barrier(const Call& call) {
  impl_->start({}, call);
}
void DeviceCollectives::all_reduce(ConstTensorView input, TensorView result, const Reduction& by,
                                   const Call& call) {
  impl_->start({.operation = Operation::all_reduce,
                .input = input,
                .result = result,
                .op = by.op,
                .factor = by.factor},
               call);
}
void DeviceCollectives::reduce(ConstTensorView input, TensorView result, const Reduction& by,
                               uint32_t root, const Call& call) {
  impl_->start({.operation = Operation::reduce,
                .input = input,
                .result = result,
                .op = by.op,
                .factor = by.factor,
                .root = root},
               call);
}
void DeviceCollectives::broadcast(TensorView tensor, uint32_t root, const Call& call) {
  impl_->start({.operation = Operation::broadcast, .input = tensor, .result = tensor, .root = root},
               call);
}
void DeviceCollectives::all_gather(ConstTensorView input, TensorView result, const Call& call) {
  impl_->start({.operation = Operation::all_gather, .input = input, .result = result}, call);
}
void DeviceCollectives::all_gather(ConstTensorView input, TensorView result,
                                   const std::vector<uint64_t>& counts, const Call& call) {
  impl_->run("all_gather", call, [&](Session& session) {
    const World& world = *session.world;
    const auto parts = parts_of("result", result, "input", input, counts, world);
    for (uint32_t root = 0; root < parts.size(); ++root) {
      if (!session.members.at(root)) {
        session.accelerator.fill(parts[root].data, 0, parts[root].bytes(), call.stream);
        continue;
      }
      CollectiveCalls(session).start({.operation = Operation::broadcast,
                                      .input = root == world.rank() ? input : ConstTensorView{},
                                      .result = parts[root],
                                      .root = root},
                                     call);
    }
  });
}
void DeviceCollectives::gather(ConstTensorView input, TensorView result, uint32_t root,
                               const Call& call) {
  impl_->start({.operation = Operation::gather, .input = input, .result = result, .root = root},
               call);
}
void DeviceCollectives::scatter(ConstTensorView input, TensorView result, uint32_t root,
                                const Call& call) {
  impl_->start({.operation = Operation::scatter, .input = input, .result = result, .root = root},
               call);
}
void DeviceCollectives::reduce_scatter(ConstTensorView input, TensorView result,
                                       const Reduction& by, const Call& call) {
  impl_->start({.operation = Operation::reduce_scatter,
                .input = input,
                .result = result,
                .op = by.op,
                .factor = by.factor},
               call);
}
void DeviceCollectives::reduce_scatter(ConstTensorView input, TensorView result,
                                       const Reduction& by, const std::vector<uint64_t>& counts,
                                       const Call& call) {
  impl_->run("reduce_scatter", call, [&](Session& session) {
    const World& world = *session.world;
    const auto parts = parts_of("input", input, "result", result, counts, world);
    // A later reduction that fails would not put back what an earlier one has overwritten.
    if (session.options.keep_inputs && result.elements() > 0 &&
        result.data == parts[world.rank()].data)
      throw InvalidArgument("result",
                            "another array than the input, for parts of different sizes with "
                            "keep_inputs",
                            "the input's part");
    for (uint32_t root = 0; root < parts.size(); ++root) {
      if (!session.members.at(root)) continue;
      CollectiveCalls(session).start({.operation = Operation::reduce,
                                      .input = parts[root],
                                      .result = root == world.rank() ? result : TensorView{},
                                      .op = by.op,
                                      .factor = by.factor,
                                      .root = root},
                                     call);
    }
  });
}
void DeviceCollectives::all_to_all(ConstTensorView input, TensorView result, const Call& call) {
  impl_->start({.operation = Operation::all_to_all, .input = input, .result = result}, call);
}

void DeviceCollectives::all_to_all(ConstTensorView input, TensorView result, const Splits& splits,
                                   const Call& call) {
  impl_->run("all_to_all", call,
             [&](Session& session) { PairCalls(session).all_to_all(input, result, splits, call); });
}
void DeviceCollectives::all_to_all(ConstTensorView input, TensorView result,
                                   const DeviceSplits& splits, const Call& call) {
  impl_->run("all_to_all", call,
             [&](Session& session) { PairCalls(session).all_to_all(input, result, splits, call); });
}
void DeviceCollectives::exchange(const std::vector<Send>& sends,
                                 const std::vector<Receive>& receives, const Call& call) {
  Session& session = impl_->for_call(call.stream);
  session.check();
  PairCalls(session).exchange(sends, receives, call);
}

uint64_t DeviceCollectives::calls() const {
  return impl_->sessions.now()->log.calls();
}
uint64_t DeviceCollectives::go_on() {
  impl_->require_open();
  impl_->sessions.for_call(
      std::nullopt, impl_->make, [](Session&, Session&) {}, true);
  impl_->undone.reset();
  return calls();
}
CallTicket DeviceCollectives::last_call() const {
  const std::shared_ptr<Session> session = impl_->sessions.now();
  return {session, session->log.calls()};
}
std::exception_ptr DeviceCollectives::error_of(const CallTicket& call, bool ended) {
  return call.session->error_of(call.number, ended);
}
std::exception_ptr DeviceCollectives::error_of_messages(const CallTicket& call) {
  return call.session->error_of_messages();
}
void DeviceCollectives::settle() {
  impl_->sessions.last().settle();
}

void DeviceCollectives::check() {
  impl_->check();
}
void DeviceCollectives::wait(Stream stream) {
  impl_->require_open();
  Session& session = impl_->sessions.last();
  session.await(stream, "the end of a stream's work");
  session.last.forget(stream);
  session.last_messages.forget(stream);
  impl_->check();
}

/// The barrier follows every rank's last kernel, so no store of this object is in flight after it.
void DeviceCollectives::close() {
  if (impl_->closed) return;
  Session& session = impl_->sessions.last();
  session.await_last();
  impl_->closed = true;
  // Ranks that have gone on do not come to a barrier of this world; the window is kept.
  if (impl_->sessions.must_go_on()) return;
  impl_->closed = false;
  session.check();
  if (session.links) session.links->drain();
  session.world->barrier("DeviceCollectives: close");
  if (session.links) session.links->give_back();
  if (session.message_links) session.message_links->give_back();
  session.message_links.reset();
  session.links.reset();
  impl_->closed = true;
  session.closed = true;
  session.window = ArenaBlock();
}

uint64_t DeviceCollectives::arena_bytes(const Options& options, uint32_t ranks) {
  return layout_of(options, ranks).bytes();
}

}  // namespace tokenyard::device_collectives
