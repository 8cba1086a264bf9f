#include "backend.hpp"

#include "tensors.hpp"

namespace tokenyard::torch_backend {
namespace {

using c10d::OpType;

core::Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return core::Reduction::sum;
    case c10d::ReduceOp::AVG:
      return core::Reduction::average;
    case c10d::ReduceOp::PRODUCT:
      return core::Reduction::product;
    case c10d::ReduceOp::MIN:
      return core::Reduction::min;
    case c10d::ReduceOp::MAX:
      return core::Reduction::max;
    case c10d::ReduceOp::BAND:
      return core::Reduction::bit_and;
    case c10d::ReduceOp::BOR:
      return core::Reduction::bit_or;
    case c10d::ReduceOp::BXOR:
      return core::Reduction::bit_xor;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "backend tokenyard has no PREMUL_SUM");
  }
}

template <class Item>
Item& only(std::vector<Item>& items) {
  TORCH_CHECK_VALUE(items.size() == 1, "requires a single tensor or list of them, not ",
                    items.size());
  return items.front();
}

/// What belongs to this rank alone, if it is the root; on other ranks nothing, or an empty list.
std::vector<at::Tensor> list_on_root(std::vector<std::vector<at::Tensor>>& lists, bool root) {
  if (root) return only(lists);
  TORCH_CHECK_VALUE(lists.empty() || (lists.size() == 1 && lists.front().empty()),
                    "requires no list of tensors on ranks other than the root");
  return {};
}

}  // namespace

TokenyardBackend::TokenyardBackend(core::Group* group, int rank, int size, Milliseconds timeout,
                                   std::string group_name, std::vector<int64_t> global_ranks,
                                   pybind11::object seat)
    : Backend(rank, size),
      options_(c10::make_intrusive<Options>("tokenyard", timeout)),
      seat_(std::move(seat)) {
  take_place(group);
  options_->group_name = std::move(group_name);
  options_->global_ranks_in_group.assign(global_ranks.begin(), global_ranks.end());
  init();
}

TokenyardBackend::~TokenyardBackend() {
  const pybind11::gil_scoped_acquire locked;
  seat_ = {};
}

void TokenyardBackend::take_place(core::Group* group) {
  Place next{nullptr, std::make_shared<AbortFlag>(false)};
  if (group != nullptr) {
    next.group = SharedGroup(table->share_group(group),
                             [](core::Group* shared) { table->drop_group(shared); });
  }
  const std::lock_guard lock(place_mutex_);
  if (place_.aborted) *place_.aborted = true;
  std::swap(place_, next);
}

TokenyardBackend::Place TokenyardBackend::place() const {
  const std::lock_guard lock(place_mutex_);
  return place_;
}

TokenyardBackend::TorchWorkPtr TokenyardBackend::work(OpType type, const char* title,
                                                      Tensors inputs, Tensors outputs) const {
  return c10::make_intrusive<TorchWork>(rank_, type, title, std::move(inputs), std::move(outputs),
                                        place().aborted);
}

void TokenyardBackend::submit(TorchWork& work, const Call& call) {
  const bool told = call.timeout.count() > 0;
  const core::Operation operation{
      .kind = call.kind,
      .reduction = call.reduction,
      .algorithm = 0,
      .from_anybody = call.from_anybody,
      .peer = static_cast<uint32_t>(call.peer),
      .tag = static_cast<uint64_t>(call.tag),
      .timeout_ns = std::chrono::nanoseconds(told ? call.timeout : options_->timeout).count(),
      .in = call.in.data(),
      .ins = call.in.size(),
      .out = call.out.data(),
      .outs = call.out.size(),
  };
  const SharedGroup group = place().group;
  if (!group) throw_cancelled(work.title());
  core::Failure* failed = nullptr;
  core::Work* begun = table->submit(group.get(), &operation, &failed);
  if (begun == nullptr) throw_python(CoreFailure(failed));
  work.add(CoreWork(begun));
}

TokenyardBackend::WorkPtr TokenyardBackend::begun(TorchWorkPtr work) {
  ++calls_;
  work->begun();
  const std::lock_guard lock(coalescing_mutex_);
  if (coalescing_) coalescing_->include(*work);
  return work;
}

TokenyardBackend::WorkPtr TokenyardBackend::begin(TorchWorkPtr work, const Call& call) {
  submit(*work, call);
  return begun(std::move(work));
}

void TokenyardBackend::startCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  coalescing_ = work(OpType::COALESCED, "tokenyard:coalesced", {}, {});
}

TokenyardBackend::WorkPtr TokenyardBackend::endCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  TORCH_CHECK(coalescing_, "endCoalescing without startCoalescing");
  coalescing_->begun();
  return std::exchange(coalescing_, nullptr);
}

TokenyardBackend::WorkPtr TokenyardBackend::allreduce(Tensors& tensors,
                                                      const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors);
  return begin(work(OpType::ALLREDUCE, "tokenyard:all_reduce", tensors, tensors),
               {.kind = core::Kind::all_reduce,
                .out = {reduced(tensor)},
                .timeout = options.timeout,
                .reduction = reduction_of(options.reduceOp)});
}

TokenyardBackend::WorkPtr TokenyardBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return begin(work(OpType::ALLREDUCE_COALESCED, "tokenyard:all_reduce", tensors, tensors),
               {.kind = core::Kind::all_reduce,
                .out = each<reduced>(tensors),
                .timeout = options.timeout,
                .reduction = reduction_of(options.reduceOp)});
}

TokenyardBackend::WorkPtr TokenyardBackend::reduce(Tensors& tensors,
                                                   const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only(tensors);
  return begin(work(OpType::REDUCE, "tokenyard:reduce", tensors, tensors),
               {.kind = core::Kind::reduce,
                .out = {reduced(tensor)},
                .timeout = options.timeout,
                .reduction = reduction_of(options.reduceOp),
                .peer = options.rootRank});
}

TokenyardBackend::WorkPtr TokenyardBackend::broadcast(Tensors& tensors,
                                                      const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only(tensors);
  return begin(work(OpType::BROADCAST, "tokenyard:broadcast", tensors, tensors),
               {.kind = core::Kind::broadcast,
                .out = {moved(tensor)},
                .timeout = options.timeout,
                .peer = options.rootRank});
}

TokenyardBackend::WorkPtr TokenyardBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  const Tensors& list = only(outputs);
  return begin(work(OpType::ALLGATHER, "tokenyard:all_gather", inputs, list),
               {.kind = core::Kind::all_gather,
                .in = {moved(only(inputs))},
                .out = each<moved>(list),
                .timeout = options.timeout});
}

TokenyardBackend::WorkPtr TokenyardBackend::allgather_coalesced(
    TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  // outputs[r][i] is rank r's inputs[i].
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_),
                    "output lists should be equal to world size");
  Tensors flat;
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "invalid output size: ", list.size(), " for ",
                      inputs.size(), " inputs");
    flat.insert(flat.end(), list.begin(), list.end());
  }
  const auto result =
      work(OpType::ALLGATHER_COALESCED, "tokenyard:all_gather", inputs, std::move(flat));
  for (size_t item = 0; item < inputs.size(); ++item) {
    Call call{.kind = core::Kind::all_gather,
              .in = {moved(inputs[item])},
              .out = {},
              .timeout = options.timeout};
    for (const Tensors& list : outputs) call.out.push_back(moved(list[item]));
    submit(*result, call);
  }
  return begun(result);
}

TokenyardBackend::WorkPtr TokenyardBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                            const c10d::AllgatherOptions& options) {
  return begin(work(OpType::_ALLGATHER_BASE, "tokenyard:_all_gather_base", {input}, {output}),
               {.kind = core::Kind::all_gather,
                .in = {divided(input)},
                .out = cut_equally(output, size_),
                .timeout = options.timeout});
}

TokenyardBackend::WorkPtr TokenyardBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "requires as many outputs as inputs");
  const auto result =
      work(OpType::COALESCED, "tokenyard:all_gather_into_tensor_coalesced", inputs, outputs);
  for (size_t item = 0; item < inputs.size(); ++item) {
    submit(*result, {.kind = core::Kind::all_gather,
                     .in = {divided(inputs[item])},
                     .out = cut_equally(outputs[item], size_),
                     .timeout = options.timeout});
  }
  return begun(result);
}

TokenyardBackend::WorkPtr TokenyardBackend::gather(TensorLists& outputs, Tensors& inputs,
                                                   const c10d::GatherOptions& options) {
  const Tensors list = list_on_root(outputs, rank_ == options.rootRank);
  return begin(work(OpType::GATHER, "tokenyard:gather", inputs, list), {.kind = core::Kind::gather,
                                                                        .in = {moved(only(inputs))},
                                                                        .out = each<moved>(list),
                                                                        .timeout = options.timeout,
                                                                        .peer = options.rootRank});
}

TokenyardBackend::WorkPtr TokenyardBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                                    const c10d::ScatterOptions& options) {
  const Tensors list = list_on_root(inputs, rank_ == options.rootRank);
  return begin(work(OpType::SCATTER, "tokenyard:scatter", list, outputs),
               {.kind = core::Kind::scatter,
                .in = each<moved>(list),
                .out = {moved(only(outputs))},
                .timeout = options.timeout,
                .peer = options.rootRank});
}

TokenyardBackend::WorkPtr TokenyardBackend::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  const Tensors& list = only(inputs);
  return begin(work(OpType::REDUCE_SCATTER, "tokenyard:reduce_scatter", list, outputs),
               {.kind = core::Kind::reduce_scatter,
                .in = each<reduced>(list),
                .out = {reduced(only(outputs))},
                .timeout = options.timeout,
                .reduction = reduction_of(options.reduceOp)});
}

TokenyardBackend::WorkPtr TokenyardBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

TokenyardBackend::WorkPtr TokenyardBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "requires as many outputs as inputs");
  const auto result =
      work(OpType::_REDUCE_SCATTER_BASE, "tokenyard:_reduce_scatter_base", inputs, outputs);
  for (size_t item = 0; item < inputs.size(); ++item) {
    reduced(inputs[item]);  // Refuses what can only be moved.
    submit(*result, {.kind = core::Kind::reduce_scatter,
                     .in = cut_equally(inputs[item], size_),
                     .out = {reduced(outputs[item])},
                     .timeout = options.timeout,
                     .reduction = reduction_of(options.reduceOp)});
  }
  return begun(result);
}

TokenyardBackend::WorkPtr TokenyardBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                     const c10d::AllToAllOptions& options) {
  return begin(work(OpType::ALLTOALL, "tokenyard:all_to_all", inputs, outputs),
               {.kind = core::Kind::all_to_all,
                .in = each<moved>(inputs),
                .out = each<moved>(outputs),
                .timeout = options.timeout});
}

TokenyardBackend::WorkPtr TokenyardBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                          std::vector<int64_t>& output_splits,
                                                          std::vector<int64_t>& input_splits,
                                                          const c10d::AllToAllOptions& options) {
  TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type(),
                    "Tensors are not equal in data type");
  return begin(work(OpType::ALLTOALL_BASE, "tokenyard:all_to_all", {input}, {output}),
               {.kind = core::Kind::all_to_all,
                .in = cut_rows(input, input_splits, size_),
                .out = cut_rows(output, output_splits, size_),
                .timeout = options.timeout});
}

TokenyardBackend::WorkPtr TokenyardBackend::barrier(const c10d::BarrierOptions& options) {
  return begin(work(OpType::BARRIER, "tokenyard:barrier", {}, {}),
               {.kind = core::Kind::barrier, .in = {}, .out = {}, .timeout = options.timeout});
}

void TokenyardBackend::monitoredBarrier(const c10d::BarrierOptions& options,
                                        bool /*wait_all_ranks: it always names them all*/) {
  begin(work(OpType::BARRIER, "tokenyard:monitored_barrier", {}, {}),
        {.kind = core::Kind::monitored_barrier, .in = {}, .out = {}, .timeout = options.timeout})
      ->wait();
}

TokenyardBackend::WorkPtr TokenyardBackend::send(Tensors& tensors, int to, int tag) {
  return begin(
      work(OpType::SEND, "tokenyard:send", tensors, {}),
      {.kind = core::Kind::send, .in = {moved(only(tensors))}, .out = {}, .peer = to, .tag = tag});
}

TokenyardBackend::WorkPtr TokenyardBackend::recv(Tensors& tensors, int from, int tag) {
  return begin(work(OpType::RECV, "tokenyard:recv", tensors, tensors),
               {.kind = core::Kind::receive,
                .in = {},
                .out = {moved(only(tensors))},
                .peer = from,
                .tag = tag});
}

TokenyardBackend::WorkPtr TokenyardBackend::recvAnysource(Tensors& tensors, int tag) {
  return begin(work(OpType::RECVANYSOURCE, "tokenyard:recvAnySource", tensors, tensors),
               {.kind = core::Kind::receive,
                .in = {},
                .out = {moved(only(tensors))},
                .tag = tag,
                .from_anybody = true});
}

}  // namespace tokenyard::torch_backend
