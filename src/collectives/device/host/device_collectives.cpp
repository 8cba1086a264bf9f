#include "collectives/device/host/device_collectives.hpp"

#include "collectives/device/host/agreed_options.hpp"
#include "collectives/device/host/collective_calls.hpp"
#include "collectives/device/host/pair_calls.hpp"
#include "collectives/device/host/parts.hpp"

namespace tokenyard::device_collectives {

struct DeviceCollectives::Impl {
  Impl(World& world, const Options& options) : session(world, options) {}

  void start(const Request& request, const Call& call) { calls.start(request, call); }

  Session session;
  CollectiveCalls calls{session};
  PairCalls pairs{session};
};

DeviceCollectives::DeviceCollectives(World& world, const Options& options)
    : impl_(std::make_unique<Impl>(world, options)) {}
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
  const std::vector<TensorView> parts =
      parts_of("result", result, "input", input, counts, impl_->session.world);
  for (uint32_t root = 0; root < parts.size(); ++root)
    impl_->start({.operation = Operation::broadcast,
                  .input = root == impl_->session.world.rank() ? input : ConstTensorView{},
                  .result = parts[root],
                  .root = root},
                 call);
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
  const std::vector<ConstTensorView> parts =
      parts_of("input", input, "result", result, counts, impl_->session.world);
  for (uint32_t root = 0; root < parts.size(); ++root)
    impl_->start({.operation = Operation::reduce,
                  .input = parts[root],
                  .result = root == impl_->session.world.rank() ? result : TensorView{},
                  .op = by.op,
                  .factor = by.factor,
                  .root = root},
                 call);
}
void DeviceCollectives::all_to_all(ConstTensorView input, TensorView result, const Call& call) {
  impl_->start({.operation = Operation::all_to_all, .input = input, .result = result}, call);
}

void DeviceCollectives::all_to_all(ConstTensorView input, TensorView result, const Splits& splits,
                                   const Call& call) {
  impl_->pairs.all_to_all(input, result, splits, call);
}
void DeviceCollectives::exchange(const std::vector<Send>& sends,
                                 const std::vector<Receive>& receives, const Call& call) {
  impl_->pairs.exchange(sends, receives, call);
}

void DeviceCollectives::check() {
  impl_->session.require_open();
  impl_->session.check();
}
void DeviceCollectives::wait(Stream stream) {
  impl_->session.require_open();
  impl_->session.await(stream, "the end of a stream's work");
  impl_->session.last.forget(stream);
  impl_->session.last_messages.forget(stream);
  impl_->session.check();
}

/// The barrier follows every rank's last kernel, so no store of this object is in flight after it.
void DeviceCollectives::close() {
  if (impl_->session.closed) return;
  impl_->session.await_last();
  impl_->session.check();
  if (impl_->session.links) impl_->session.links->drain();
  impl_->session.world.barrier("DeviceCollectives: close");
  if (impl_->session.links) impl_->session.links->give_back();
  impl_->session.links.reset();
  impl_->session.closed = true;
  impl_->session.window = ArenaBlock();
}

uint64_t DeviceCollectives::arena_bytes(const Options& options, uint32_t ranks) {
  return layout_of(options, ranks).bytes();
}

}  // namespace tokenyard::device_collectives
