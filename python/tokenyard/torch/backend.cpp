#include "backend.hpp"

#include "tensors.hpp"

namespace tokenyard::torch_backend {

using c10d::OpType;

TokenyardBackend::TokenyardBackend(core::Group* group, int rank, int size, Milliseconds timeout,
                                   std::string group_name, std::vector<int64_t> global_ranks,
                                   pybind11::object backend_state, bool host_device)
    : Backend(rank, size),
      options_(c10::make_intrusive<Options>("tokenyard", timeout)),
      backend_state_(std::move(backend_state)),
      host_device_(host_device) {
  take_place(group);
  options_->group_name = std::move(group_name);
  options_->global_ranks_in_group.assign(global_ranks.begin(), global_ranks.end());
  init();
}

TokenyardBackend::~TokenyardBackend() {
  const pybind11::gil_scoped_acquire locked;
  backend_state_ = {};
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

int TokenyardBackend::parts() const {
  const SharedGroup group = place().group;
  return group ? static_cast<int>(table->parts(group.get())) : size_;
}

TokenyardBackend::TorchWorkPtr TokenyardBackend::work(OpType type, const char* title,
                                                      Tensors inputs, Tensors outputs) const {
  return c10::make_intrusive<TorchWork>(rank_, type, title, std::move(inputs), std::move(outputs),
                                        place().aborted);
}

void TokenyardBackend::submit(TorchWork& work, OperandsPtr operands, const Call& call) {
  const bool told = call.timeout != c10d::kUnsetTimeout;
  constexpr int64_t kPeerMax = std::numeric_limits<uint32_t>::max();  // The core checks the rest.
  const core::Operation operation{
      .kind = call.kind,
      .reduction = call.reduction,
      .algorithm = 0,
      .from_anybody = call.from_anybody,
      .peer = static_cast<uint32_t>(in_range({call.peer_argument}, call.peer, 0, kPeerMax)),
      .tag = static_cast<uint64_t>(
          in_range({"tag"}, call.tag, 0, std::numeric_limits<int64_t>::max())),
      .timeout_ns = nanoseconds_of(told ? call.timeout : options_->timeout).count(),
      .in = call.in.data(),
      .ins = call.in.size(),
      .out = call.out.data(),
      .outs = call.out.size(),
  };
  const SharedGroup group = place().group;
  if (!group) refuse(work.title());
  core::Failure* failed = nullptr;
  core::Work* begun = table->submit(group.get(), &operation, &failed);
  if (begun == nullptr) throw_python(CoreFailure(failed));
  work.add(CoreWork(begun), std::move(operands));
  const bool message = call.kind == core::Kind::send || call.kind == core::Kind::receive;
  if (message && !call.from_anybody) work.set_peer(call.peer);
}

TokenyardBackend::WorkPtr TokenyardBackend::begun(TorchWorkPtr work) {
  ++calls_;
  work->begun();
  const std::lock_guard lock(coalescing_mutex_);
  if (coalescing_) coalescing_->include(*work);
  return work;
}

TokenyardBackend::WorkPtr TokenyardBackend::begin(TorchWorkPtr work, OperandsPtr operands,
                                                  const Call& call) {
  submit(*work, std::move(operands), call);
  return begun(std::move(work));
}

TokenyardBackend::WorkPtr TokenyardBackend::begin(TorchWorkPtr work, Calls calls) {
  for (auto& [operands, call] : calls) submit(*work, std::move(operands), call);
  return begun(std::move(work));
}

void TokenyardBackend::startCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  coalescing_ = work(OpType::COALESCED, "tokenyard:coalesced", {}, {});
}

TokenyardBackend::WorkPtr TokenyardBackend::endCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  TORCH_CHECK(coalescing_, "endCoalescing without startCoalescing");
  if (device_coalescing_) return end_coalescing_on_device();
  coalescing_->begun();
  return std::exchange(coalescing_, nullptr);
}

TokenyardBackend::WorkPtr TokenyardBackend::allreduce(Tensors& tensors,
                                                      const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors);
  if (on_device(tensor))
    return reduce_on_device(core::Kind::all_reduce, OpType::ALLREDUCE, "tokenyard:all_reduce",
                            tensors, 0, options.reduceOp, goes_beside(options), options.timeout);
  const auto operands = std::make_shared<Operands>();
  return begin(work(OpType::ALLREDUCE, "tokenyard:all_reduce", tensors, tensors), operands,
               {.kind = core::Kind::all_reduce,
                .out = {operands->written({"tensor"}, tensor, reduced)},
                .timeout = options.timeout,
                .reduction = reduction_of(options.reduceOp)});
}

TokenyardBackend::WorkPtr TokenyardBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  if (on_device(tensors))
    return reduce_on_device(core::Kind::all_reduce, OpType::ALLREDUCE_COALESCED,
                            "tokenyard:all_reduce", tensors, 0, options.reduceOp,
                            goes_beside(options), options.timeout);
  const auto operands = std::make_shared<Operands>();
  return begin(work(OpType::ALLREDUCE_COALESCED, "tokenyard:all_reduce", tensors, tensors),
               operands,
               {.kind = core::Kind::all_reduce,
                .out = operands->written("tensors", tensors, reduced),
                .timeout = options.timeout,
                .reduction = reduction_of(options.reduceOp)});
}

TokenyardBackend::WorkPtr TokenyardBackend::reduce(Tensors& tensors,
                                                   const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only(tensors);
  in_range({"rootTensor"}, options.rootTensor, 0, 0);
  if (on_device(tensor))
    return reduce_on_device(core::Kind::reduce, OpType::REDUCE, "tokenyard:reduce", tensors,
                            static_cast<int>(options.rootRank), options.reduceOp,
                            goes_beside(options), options.timeout);
  const auto operands = std::make_shared<Operands>();
  const Argument argument{"tensor"};
  return begin(work(OpType::REDUCE, "tokenyard:reduce", tensors, tensors), operands,
               {.kind = core::Kind::reduce,
                .out = {rank_ == options.rootRank ? operands->written(argument, tensor, reduced)
                                                  : operands->read(argument, tensor, reduced)},
                .timeout = options.timeout,
                .reduction = reduction_of(options.reduceOp),
                .peer = options.rootRank});
}

TokenyardBackend::WorkPtr TokenyardBackend::broadcast(Tensors& tensors,
                                                      const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only(tensors);
  in_range({"rootTensor"}, options.rootTensor, 0, 0);
  if (on_device(tensor)) return broadcast_on_device(tensor, options);
  const auto operands = std::make_shared<Operands>();
  const Argument argument{"tensor"};
  return begin(work(OpType::BROADCAST, "tokenyard:broadcast", tensors, tensors), operands,
               {.kind = core::Kind::broadcast,
                .out = {rank_ == options.rootRank ? operands->read(argument, tensor)
                                                  : operands->written(argument, tensor)},
                .timeout = options.timeout,
                .peer = options.rootRank});
}

TokenyardBackend::WorkPtr TokenyardBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  const Tensors& list = only(outputs);
  if (on_device(inputs))
    return all_gather_on_device(OpType::ALLGATHER, "tokenyard:all_gather", outputs, inputs,
                                options);
  const auto operands = std::make_shared<Operands>();
  return begin(work(OpType::ALLGATHER, "tokenyard:all_gather", inputs, list), operands,
               {.kind = core::Kind::all_gather,
                .in = {operands->read({"tensor"}, only(inputs))},
                .out = operands->written("tensor_list", list),
                .timeout = options.timeout});
}

TokenyardBackend::WorkPtr TokenyardBackend::allgather_coalesced(
    TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  // outputs[r][i] is rank r's inputs[i].
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(parts()),
                    "output lists should be equal to world size");
  Tensors flat;
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "invalid output size: ", list.size(), " for ",
                      inputs.size(), " inputs");
    flat.insert(flat.end(), list.begin(), list.end());
  }
  if (on_device(inputs)) {
    TensorLists by_item(inputs.size());
    for (const Tensors& list : outputs)
      for (size_t item = 0; item < list.size(); ++item) by_item[item].push_back(list[item]);
    return all_gather_on_device(OpType::ALLGATHER_COALESCED, "tokenyard:all_gather", by_item,
                                inputs, options);
  }
  check_no_overlap("output_tensor_lists", flat);
  const auto result = work(OpType::ALLGATHER_COALESCED, "tokenyard:all_gather", inputs, flat);
  Calls calls;
  for (size_t item = 0; item < inputs.size(); ++item) {
    const auto operands = std::make_shared<Operands>();
    Call call{.kind = core::Kind::all_gather,
              .in = {operands->read({"input_tensor_list", item}, inputs[item])},
              .out = {},
              .timeout = options.timeout};
    for (size_t from = 0; from < outputs.size(); ++from)
      call.out.push_back(operands->written({"output_tensor_lists", from}, outputs[from][item]));
    calls.emplace_back(operands, std::move(call));
  }
  return begin(result, std::move(calls));
}

TokenyardBackend::WorkPtr TokenyardBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                            const c10d::AllgatherOptions& options) {
  if (on_device(input))
    return all_gather_into_on_device(OpType::_ALLGATHER_BASE, "tokenyard:_all_gather_base",
                                     {output}, {input}, options);
  const auto operands = std::make_shared<Operands>();
  return begin(
      work(OpType::_ALLGATHER_BASE, "tokenyard:_all_gather_base", {input}, {output}), operands,
      into_one(*operands, {"output_tensor"}, output, {"input_tensor"}, input, options.timeout));
}

TokenyardBackend::WorkPtr TokenyardBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "requires as many outputs as inputs");
  check_no_overlap("outputs", outputs);
  if (on_device(inputs))
    return all_gather_into_on_device(
        OpType::COALESCED, "tokenyard:all_gather_into_tensor_coalesced", outputs, inputs, options);
  Calls calls;
  for (size_t item = 0; item < inputs.size(); ++item) {
    const auto operands = std::make_shared<Operands>();
    calls.emplace_back(operands, into_one(*operands, {"outputs", item}, outputs[item],
                                          {"inputs", item}, inputs[item], options.timeout));
  }
  return begin(
      work(OpType::COALESCED, "tokenyard:all_gather_into_tensor_coalesced", inputs, outputs),
      std::move(calls));
}

TokenyardBackend::Call TokenyardBackend::into_one(Operands& operands, const Argument& whole,
                                                  const at::Tensor& output, const Argument& part,
                                                  const at::Tensor& input,
                                                  Milliseconds timeout) const {
  return {.kind = core::Kind::all_gather,
          .in = {operands.read(part, input)},
          .out = cut_into_parts(whole, output, operands.written(whole, output), input, parts()),
          .timeout = timeout};
}

TokenyardBackend::WorkPtr TokenyardBackend::gather(TensorLists& outputs, Tensors& inputs,
                                                   const c10d::GatherOptions& options) {
  const Tensors list = list_on_root(outputs, rank_ == options.rootRank);
  if (on_device(inputs)) return gather_on_device(only(inputs), list, nullptr, options);
  const auto operands = std::make_shared<Operands>();
  return begin(work(OpType::GATHER, "tokenyard:gather", inputs, list), operands,
               {.kind = core::Kind::gather,
                .in = {operands->read({"tensor"}, only(inputs))},
                .out = operands->written("gather_list", list),
                .timeout = options.timeout,
                .peer = options.rootRank});
}

TokenyardBackend::WorkPtr TokenyardBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                                          const c10d::GatherOptions& options) {
  const bool root = rank_ == options.rootRank;
  if (on_device(input)) return gather_on_device(input, {}, &output, options);
  const auto operands = std::make_shared<Operands>();
  Call call{.kind = core::Kind::gather,
            .in = {operands->read({"tensor"}, input)},
            .out = {},
            .timeout = options.timeout,
            .peer = options.rootRank};
  const Argument whole{"gather_tensor"};
  if (root) call.out = cut_equally(whole, output, operands->written(whole, output), size_);
  return begin(
      work(OpType::GATHER, "tokenyard:gather", {input}, root ? Tensors{output} : Tensors{}),
      operands, call);
}

TokenyardBackend::WorkPtr TokenyardBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                                    const c10d::ScatterOptions& options) {
  const Tensors list = list_on_root(inputs, rank_ == options.rootRank);
  if (on_device(outputs)) return scatter_on_device(only(outputs), list, options);
  const auto operands = std::make_shared<Operands>();
  return begin(work(OpType::SCATTER, "tokenyard:scatter", list, outputs), operands,
               {.kind = core::Kind::scatter,
                .in = operands->read("scatter_list", list),
                .out = {operands->written({"tensor"}, only(outputs))},
                .timeout = options.timeout,
                .peer = options.rootRank});
}

TokenyardBackend::WorkPtr TokenyardBackend::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  const Tensors& list = only(inputs);
  if (on_device(outputs)) return reduce_scatter_on_device(only(outputs), list, options);
  const auto operands = std::make_shared<Operands>();
  return begin(work(OpType::REDUCE_SCATTER, "tokenyard:reduce_scatter", list, outputs), operands,
               {.kind = core::Kind::reduce_scatter,
                .in = operands->read("input_list", list, reduced),
                .out = {operands->written({"output"}, only(outputs), reduced)},
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
  check_no_overlap("outputs", outputs);
  if (on_device(outputs)) return reduce_scatter_tensor_on_device(outputs, inputs, options);
  const bool one = outputs.size() == 1;
  Calls calls;
  for (size_t item = 0; item < inputs.size(); ++item) {
    const auto operands = std::make_shared<Operands>();
    const Argument whole = one ? Argument{"input"} : Argument{"inputs", item};
    const Argument part = one ? Argument{"output"} : Argument{"outputs", item};
    const core::Array input = operands->read(whole, inputs[item], reduced);
    calls.emplace_back(
        operands, Call{.kind = core::Kind::reduce_scatter,
                       .in = cut_into_parts(whole, inputs[item], input, outputs[item], parts()),
                       .out = {operands->written(part, outputs[item], reduced)},
                       .timeout = options.timeout,
                       .reduction = reduction_of(options.reduceOp)});
  }
  return begin(
      work(OpType::_REDUCE_SCATTER_BASE, "tokenyard:_reduce_scatter_base", inputs, outputs),
      std::move(calls));
}

TokenyardBackend::WorkPtr TokenyardBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                     const c10d::AllToAllOptions& options) {
  if (on_device(outputs)) return all_to_all_on_device(outputs, inputs, options);
  const auto operands = std::make_shared<Operands>();
  return begin(work(OpType::ALLTOALL, "tokenyard:all_to_all", inputs, outputs), operands,
               {.kind = core::Kind::all_to_all,
                .in = operands->read("input_tensor_list", inputs),
                .out = operands->written("output_tensor_list", outputs),
                .timeout = options.timeout});
}

TokenyardBackend::WorkPtr TokenyardBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                          std::vector<int64_t>& output_splits,
                                                          std::vector<int64_t>& input_splits,
                                                          const c10d::AllToAllOptions& options) {
  TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type(),
                    "Tensors are not equal in data type");
  if (on_device(output))
    return all_to_all_base_on_device(output, input, output_splits, input_splits, options);
  const auto operands = std::make_shared<Operands>();
  const core::Array from = operands->read({"input"}, input);
  const core::Array into = operands->written({"output"}, output);
  return begin(
      work(OpType::ALLTOALL_BASE, "tokenyard:all_to_all", {input}, {output}), operands,
      {.kind = core::Kind::all_to_all,
       .in = cut_rows({"input"}, input, from, "input_split_sizes", input_splits, parts()),
       .out = cut_rows({"output"}, output, into, "output_split_sizes", output_splits, parts()),
       .timeout = options.timeout});
}

TokenyardBackend::WorkPtr TokenyardBackend::barrier(const c10d::BarrierOptions& options) {
  if (host_device_ || (options.device && options.device->is_cuda()))
    return barrier_on_device(options);
  return begin(work(OpType::BARRIER, "tokenyard:barrier", {}, {}), std::make_shared<Operands>(),
               {.kind = core::Kind::barrier, .in = {}, .out = {}, .timeout = options.timeout});
}

void TokenyardBackend::monitoredBarrier(const c10d::BarrierOptions& options,
                                        bool /*wait_all_ranks: always true here*/) {
  begin(work(OpType::BARRIER, "tokenyard:monitored_barrier", {}, {}), std::make_shared<Operands>(),
        {.kind = core::Kind::monitored_barrier, .in = {}, .out = {}, .timeout = options.timeout})
      ->wait();
}

TokenyardBackend::WorkPtr TokenyardBackend::send(Tensors& tensors, int to, int tag) {
  if (on_device(tensors)) return message_on_device(only(tensors), to, tag, false);
  const auto operands = std::make_shared<Operands>();
  return begin(work(OpType::SEND, "tokenyard:send", tensors, {}), operands,
               {.kind = core::Kind::send,
                .in = {operands->read({"tensor"}, only(tensors))},
                .out = {},
                .peer = to,
                .peer_argument = "dst",
                .tag = tag});
}

TokenyardBackend::WorkPtr TokenyardBackend::recv(Tensors& tensors, int from, int tag) {
  if (on_device(tensors)) return message_on_device(only(tensors), from, tag, true);
  const auto operands = std::make_shared<Operands>();
  return begin(work(OpType::RECV, "tokenyard:recv", tensors, tensors), operands,
               {.kind = core::Kind::receive,
                .in = {},
                .out = {operands->written({"tensor"}, only(tensors))},
                .peer = from,
                .peer_argument = "src",
                .tag = tag});
}

TokenyardBackend::WorkPtr TokenyardBackend::recvAnysource(Tensors& tensors, int tag) {
  if (on_device(tensors)) torch_backend::refuse({"src"}, "a rank, for tensors of a device", "none");
  const auto operands = std::make_shared<Operands>();
  return begin(work(OpType::RECVANYSOURCE, "tokenyard:recvAnySource", tensors, tensors), operands,
               {.kind = core::Kind::receive,
                .in = {},
                .out = {operands->written({"tensor"}, only(tensors))},
                .tag = tag,
                .from_anybody = true});
}

}  // namespace tokenyard::torch_backend
