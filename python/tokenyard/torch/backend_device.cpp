/// The backend's calls on device tensors: translates calls of c10d to those of DeviceCollectives,
/// which are enqueued in streams.
#include "backend.hpp"
#include "device_run.hpp"

namespace tokenyard::torch_backend {

namespace py = pybind11;
using c10d::OpType;

namespace {

/// Returns the reduction, and the factor of every summand.
std::pair<core::Reduction, double> reduction_on_device(const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return {reduction_of(op), 1.0};
  const auto* given = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(given != nullptr, "PREMUL_SUM without a factor");
  return {core::Reduction::sum, given->tensor_factor.defined() ? given->tensor_factor.item<double>()
                                                               : given->double_factor};
}

core::DeviceCall plain(core::Kind kind) {
  return {.kind = kind,
          .reduction = core::Reduction::sum,
          .type = core::Type::uint8,
          .factor = 1,
          .root = 0,
          .in = nullptr,
          .in_elements = 0,
          .out = nullptr,
          .out_elements = 0,
          .sent = nullptr,
          .received = nullptr,
          .stream = 0,
          .timeout_ns = 0};
}

/// Addresses of tensors without elements are null, but they are given.
const std::byte kNothing[16] = {};

void set_in(core::DeviceCall& call, const core::Array& array) {
  call.type = array.type;
  call.in = array.data != nullptr ? array.data : kNothing;
  call.in_elements = array.elements;
}
void set_out(core::DeviceCall& call, const core::Array& array) {
  call.type = array.type;
  call.out = array.data != nullptr ? array.data : const_cast<std::byte*>(kNothing);
  call.out_elements = array.elements;
}

std::vector<uint64_t> elements_of(const std::vector<at::Tensor>& list) {
  std::vector<uint64_t> elements;
  for (const at::Tensor& tensor : list) elements.push_back(moved({""}, tensor).elements);
  return elements;
}

bool all_equal(const std::vector<uint64_t>& counts) {
  return std::all_of(counts.begin(), counts.end(),
                     [&](uint64_t count) { return count == counts.front(); });
}

}  // namespace

bool TokenyardBackend::on_device(const at::Tensor& tensor) const {
  return tensor.defined() && (tensor.is_cuda() || (host_device_ && tensor.is_cpu()));
}

SharedDevice TokenyardBackend::device_at(c10::Device where) {
  const Unlocked unlocked;  // First: a thread that holds the mutex may wait for Python's lock.
  const std::lock_guard lock(device_mutex_);
  if (device_ && !table->device_retired(device_.get())) {
    if (device_index_ != where.index())
      torch_backend::refuse({"tensor"},
                            c10::str("a tensor on cuda:", static_cast<int>(device_index_),
                                     " like those of earlier calls"),
                            c10::str("one on ", where));
    return device_;
  }
  device_.reset();
  const py::gil_scoped_acquire locked;
  const py::object index = where.is_cpu() ? py::object(py::none())
                                          : py::object(py::int_(static_cast<int>(where.index())));
  const auto capsule = backend_state_.attr("device_capsule")(index).cast<py::capsule>();
  device_ =
      SharedDevice(table->share_device(content_of<core::Device>(capsule, core::kDeviceCapsule)),
                   [](core::Device* shared) { table->drop_device(shared); });
  device_index_ = where.index();
  return device_;
}

std::shared_ptr<const GroupFacts> TokenyardBackend::facts() {
  const std::lock_guard lock(facts_mutex_);
  if (!facts_ || facts_->size != size_)
    facts_ = std::make_shared<GroupFacts>(getGroupUid(), getGroupDesc(), rank_, size_,
                                          options_->global_ranks_in_group);
  return facts_;
}

c10::intrusive_ptr<DeviceWork> TokenyardBackend::device_work(
    OpType type, const char* title, Tensors inputs, Tensors outputs,
    std::shared_ptr<const GroupFacts> group) {
  return c10::make_intrusive<DeviceWork>(rank_, type, title, std::move(inputs), std::move(outputs),
                                         type == OpType::BARRIER, std::move(group), calls_);
}

void TokenyardBackend::eagerConnectSingleDevice(at::Device device) {
  if (device.is_cuda()) device_at(device);
  if (device.is_cpu() && host_device_) device_at(c10::Device(c10::kCPU));
}

DeviceStream TokenyardBackend::stream_at(c10::Device where, Beside beside) {
  if (where.is_cpu()) return {};
  const c10::impl::VirtualGuardImpl guard(where.type());
  c10::Stream stream = guard.getStream(where);
  const Unlocked unlocked;  // As in device_at.
  const std::lock_guard lock(device_mutex_);
  if (beside != Beside::no) {
    std::optional<c10::Stream>& own = beside == Beside::calls ? calls_stream_ : messages_stream_;
    if (!own) own = guard.getStreamFromGlobalPool(where, true);
    stream = *own;
  }
  const auto known = handles_.find(stream.id());
  if (known != handles_.end()) return {stream, known->second};
  // Only torch's Python interface tells a stream's handle without the headers of CUDA.
  const c10::StreamGuard current(stream);
  const py::gil_scoped_acquire locked;
  const auto handle = py::module_::import("torch._C")
                          .attr("_cuda_getCurrentRawStream")(static_cast<int>(where.index()))
                          .cast<uint64_t>();
  handles_[stream.id()] = handle;
  return {stream, handle};
}

template <class Body>
TokenyardBackend::WorkPtr TokenyardBackend::run_on_device(OpType type, const char* title,
                                                          Tensors inputs, Tensors outputs,
                                                          c10::Device where, bool beside,
                                                          Milliseconds timeout, const Body& body) {
  const SharedDevice device = device_at(where);
  const bool told = timeout != c10d::kUnsetTimeout;
  const int64_t timeout_ns = nanoseconds_of(told ? timeout : options_->timeout).count();
  const std::shared_ptr<const GroupFacts> group = facts();
  const CallRecord record(*group, type, calls_, inputs, outputs);
  auto work = device_work(type, title, std::move(inputs), outputs, group);
  DeviceRun run(device, where, stream_at(where, beside ? Beside::calls : Beside::no), events_,
                timeout_ns);
  try {
    body(run);
    run.finish(*work);
  } catch (...) {
    run.protect();
    forget_batch();
    throw;
  }
  ++calls_;
  work->begun();
  const std::lock_guard lock(coalescing_mutex_);
  if (!coalescing_) return work;
  if (!device_coalescing_)
    device_coalescing_ = device_work(OpType::COALESCED, "tokenyard:coalesced", {}, {}, group);
  device_coalescing_->add_outputs(outputs);
  device_coalescing_->follow_call(run.last_call());
  if (const DeviceStream on = stream_at(where, beside ? Beside::calls : Beside::no); on.stream)
    device_coalescing_->follow(*on.stream, events_, beside);
  return work;
}

TokenyardBackend::WorkPtr TokenyardBackend::end_coalescing_on_device() {
  auto work = std::exchange(device_coalescing_, nullptr);
  const auto messages = std::exchange(device_messages_, nullptr);
  coalescing_ = nullptr;
  if (messages) messages->finish(*work);
  work->begun();
  return work;
}

TokenyardBackend::WorkPtr TokenyardBackend::reduce_on_device(core::Kind kind, OpType type,
                                                             const char* title,
                                                             const Tensors& tensors, int root,
                                                             const c10d::ReduceOp& op, bool beside,
                                                             Milliseconds timeout) {
  in_range({"root"}, root, 0, size_ - 1);
  const auto [reduction, factor] = reduction_on_device(op);
  return run_on_device(type, title, tensors, tensors, tensors.front().device(), beside, timeout,
                       [&, reduction = reduction, factor = factor](DeviceRun& run) {
                         for (size_t index = 0; index < tensors.size(); ++index) {
                           const Argument argument = tensors.size() == 1
                                                         ? Argument{"tensor"}
                                                         : Argument{"tensors", index};
                           const bool writes = kind != core::Kind::reduce || root == rank_;
                           const at::Tensor tensor = writes ? run.written(argument, tensors[index])
                                                            : run.read(argument, tensors[index]);
                           const core::Array array = reduced_on_device(argument, tensor, reduction);
                           core::DeviceCall call = plain(kind);
                           set_in(call, array);
                           if (writes) set_out(call, array);
                           call.reduction = reduction;
                           call.factor = factor;
                           call.root = static_cast<uint32_t>(root);
                           run.call(call);
                         }
                       });
}

TokenyardBackend::WorkPtr TokenyardBackend::broadcast_on_device(
    const at::Tensor& tensor, const c10d::BroadcastOptions& options) {
  const auto root = static_cast<uint32_t>(in_range({"root"}, options.rootRank, 0, size_ - 1));
  return run_on_device(
      OpType::BROADCAST, "tokenyard:broadcast", {tensor}, {tensor}, tensor.device(),
      goes_beside(options), options.timeout, [&](DeviceRun& run) {
        const Argument argument{"tensor"};
        core::DeviceCall call = plain(core::Kind::broadcast);
        set_out(call, moved(argument, rank_ == options.rootRank ? run.read(argument, tensor)
                                                                : run.written(argument, tensor)));
        call.root = root;
        run.call(call);
      });
}

TokenyardBackend::WorkPtr TokenyardBackend::all_gather_on_device(
    OpType type, const char* title, const TensorLists& outputs, const Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  Tensors flat;
  for (const Tensors& list : outputs) flat.insert(flat.end(), list.begin(), list.end());
  return run_on_device(
      type, title, inputs, flat, inputs.front().device(), goes_beside(options), options.timeout,
      [&](DeviceRun& run) {
        for (size_t item = 0; item < inputs.size(); ++item) {
          const Tensors& list = outputs[item];
          if (list.size() != static_cast<size_t>(size_))
            torch_backend::refuse({"tensor_list"}, c10::str(size_, " tensors, one per rank"),
                                  c10::str(list.size()));
          const std::vector<uint64_t> counts = elements_of(list);
          core::DeviceCall call = plain(core::Kind::all_gather);
          set_out(call, moved({"tensor_list"}, run.written_all("tensor_list", list)));
          set_in(call, moved({"tensor"}, run.read({"tensor"}, inputs[item])));
          if (!all_equal(counts)) call.sent = counts.data();
          run.call(call);
        }
      });
}

TokenyardBackend::WorkPtr TokenyardBackend::all_gather_into_on_device(
    OpType type, const char* title, const Tensors& outputs, const Tensors& inputs,
    const c10d::AllgatherOptions& options) {
  return run_on_device(
      type, title, inputs, outputs, inputs.front().device(), goes_beside(options), options.timeout,
      [&](DeviceRun& run) {
        for (size_t item = 0; item < inputs.size(); ++item) {
          if (outputs[item].scalar_type() != inputs[item].scalar_type())
            torch_backend::refuse({"output_tensor"},
                                  c10::str("a tensor of ", inputs[item].scalar_type()),
                                  c10::str(outputs[item].scalar_type()));
          core::DeviceCall call = plain(core::Kind::all_gather);
          set_out(call, moved({"output_tensor"}, run.written({"output_tensor"}, outputs[item])));
          set_in(call, moved({"input_tensor"}, run.read({"input_tensor"}, inputs[item])));
          run.call(call);
        }
      });
}

TokenyardBackend::WorkPtr TokenyardBackend::gather_on_device(const at::Tensor& input,
                                                             const Tensors& list,
                                                             const at::Tensor* whole,
                                                             const c10d::GatherOptions& options) {
  const auto root = static_cast<uint32_t>(in_range({"root"}, options.rootRank, 0, size_ - 1));
  const bool is_root = rank_ == options.rootRank;
  Tensors outputs = list;
  if (is_root && whole != nullptr) outputs = {*whole};
  return run_on_device(
      OpType::GATHER, "tokenyard:gather", {input}, outputs, input.device(), goes_beside(options),
      options.timeout, [&](DeviceRun& run) {
        core::DeviceCall call = plain(core::Kind::gather);
        if (is_root && whole != nullptr) {
          set_out(call, moved({"gather_tensor"}, run.written({"gather_tensor"}, *whole)));
        } else if (is_root) {
          if (list.size() != static_cast<size_t>(size_) || !all_equal(elements_of(list)))
            torch_backend::refuse({"gather_list"},
                                  c10::str(size_, " tensors of one size, one per rank"),
                                  c10::str(list.size(), " tensors"));
          set_out(call, moved({"gather_list"}, run.written_all("gather_list", list)));
        }
        set_in(call, moved({"tensor"}, run.read({"tensor"}, input)));
        call.root = root;
        run.call(call);
      });
}

TokenyardBackend::WorkPtr TokenyardBackend::scatter_on_device(const at::Tensor& output,
                                                              const Tensors& list,
                                                              const c10d::ScatterOptions& options) {
  const auto root = static_cast<uint32_t>(in_range({"root"}, options.rootRank, 0, size_ - 1));
  return run_on_device(
      OpType::SCATTER, "tokenyard:scatter", list, {output}, output.device(), goes_beside(options),
      options.timeout, [&](DeviceRun& run) {
        core::DeviceCall call = plain(core::Kind::scatter);
        if (rank_ == options.rootRank) {
          if (list.size() != static_cast<size_t>(size_) || !all_equal(elements_of(list)))
            torch_backend::refuse({"scatter_list"},
                                  c10::str(size_, " tensors of one size, one per rank"),
                                  c10::str(list.size(), " tensors"));
          set_in(call, moved({"scatter_list"}, run.read_all("scatter_list", list)));
        }
        set_out(call, moved({"tensor"}, run.written({"tensor"}, output)));
        call.root = root;
        run.call(call);
      });
}

TokenyardBackend::WorkPtr TokenyardBackend::reduce_scatter_on_device(
    const at::Tensor& output, const Tensors& list, const c10d::ReduceScatterOptions& options) {
  const auto [reduction, factor] = reduction_on_device(options.reduceOp);
  return run_on_device(
      OpType::REDUCE_SCATTER, "tokenyard:reduce_scatter", list, {output}, output.device(),
      goes_beside(options), options.timeout,
      [&, reduction = reduction, factor = factor](DeviceRun& run) {
        if (list.size() != static_cast<size_t>(size_))
          torch_backend::refuse({"input_list"}, c10::str(size_, " tensors, one per rank"),
                                c10::str(list.size()));
        std::vector<uint64_t> counts;
        for (const at::Tensor& tensor : list)
          counts.push_back(reduced_on_device({"input_list"}, tensor, reduction).elements);
        core::DeviceCall call = plain(core::Kind::reduce_scatter);
        set_in(call,
               reduced_on_device({"input_list"}, run.read_all("input_list", list), reduction));
        set_out(call, reduced_on_device({"output"}, run.written({"output"}, output), reduction));
        call.reduction = reduction;
        call.factor = factor;
        if (!all_equal(counts)) call.sent = counts.data();
        run.call(call);
      });
}

TokenyardBackend::WorkPtr TokenyardBackend::reduce_scatter_tensor_on_device(
    const Tensors& outputs, const Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  const auto [reduction, factor] = reduction_on_device(options.reduceOp);
  return run_on_device(
      OpType::_REDUCE_SCATTER_BASE, "tokenyard:_reduce_scatter_base", inputs, outputs,
      outputs.front().device(), goes_beside(options), options.timeout,
      [&, reduction = reduction, factor = factor](DeviceRun& run) {
        for (size_t item = 0; item < inputs.size(); ++item) {
          if (outputs[item].scalar_type() != inputs[item].scalar_type())
            torch_backend::refuse({"output"}, c10::str("a tensor of ", inputs[item].scalar_type()),
                                  c10::str(outputs[item].scalar_type()));
          core::DeviceCall call = plain(core::Kind::reduce_scatter);
          set_in(call, reduced_on_device({"input"}, run.read({"input"}, inputs[item]), reduction));
          set_out(call,
                  reduced_on_device({"output"}, run.written({"output"}, outputs[item]), reduction));
          call.reduction = reduction;
          call.factor = factor;
          run.call(call);
        }
      });
}

TokenyardBackend::WorkPtr TokenyardBackend::all_to_all_on_device(
    const Tensors& outputs, const Tensors& inputs, const c10d::AllToAllOptions& options) {
  return run_on_device(
      OpType::ALLTOALL, "tokenyard:all_to_all", inputs, outputs, outputs.front().device(),
      goes_beside(options), options.timeout, [&](DeviceRun& run) {
        for (const auto& [name, list] :
             {std::pair{"input_tensor_list", &inputs}, {"output_tensor_list", &outputs}})
          if (list->size() != static_cast<size_t>(size_))
            torch_backend::refuse({name}, c10::str(size_, " tensors, one per rank"),
                                  c10::str(list->size()));
        const std::vector<uint64_t> sent = elements_of(inputs), received = elements_of(outputs);
        core::DeviceCall call = plain(core::Kind::all_to_all);
        set_in(call, moved({"input_tensor_list"}, run.read_all("input_tensor_list", inputs)));
        set_out(call,
                moved({"output_tensor_list"}, run.written_all("output_tensor_list", outputs)));
        call.sent = sent.data();
        call.received = received.data();
        run.call(call);
      });
}

TokenyardBackend::WorkPtr TokenyardBackend::all_to_all_base_on_device(
    const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& output_splits,
    const std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  return run_on_device(
      OpType::ALLTOALL_BASE, "tokenyard:all_to_all", {input}, {output}, output.device(),
      goes_beside(options), options.timeout, [&](DeviceRun& run) {
        const at::Tensor read = run.read({"input"}, input);
        const at::Tensor written = run.written({"output"}, output);
        const core::Array from = moved({"input"}, read), into = moved({"output"}, written);
        core::DeviceCall call = plain(core::Kind::all_to_all);
        set_in(call, from);
        set_out(call, into);
        std::vector<uint64_t> sent, received;
        if (!input_splits.empty() || !output_splits.empty()) {
          for (const core::Array& part :
               cut_rows({"input"}, read, from, "input_split_sizes", input_splits, size_))
            sent.push_back(part.elements);
          for (const core::Array& part :
               cut_rows({"output"}, written, into, "output_split_sizes", output_splits, size_))
            received.push_back(part.elements);
          call.sent = sent.data();
          call.received = received.data();
        }
        run.call(call);
      });
}

TokenyardBackend::WorkPtr TokenyardBackend::barrier_on_device(const c10d::BarrierOptions& options) {
  const c10::Device where = host_device_ ? c10::Device(c10::kCPU) : *options.device;
  return run_on_device(OpType::BARRIER, "tokenyard:barrier", {}, {}, where, false, options.timeout,
                       [&](DeviceRun& run) { run.call(plain(core::Kind::barrier)); });
}

/// torch does not end a batch in which a call raises, and later calls are none of it.
void TokenyardBackend::forget_batch() {
  const std::lock_guard lock(coalescing_mutex_);
  coalescing_ = nullptr;
  device_messages_.reset();
  device_coalescing_ = nullptr;
}

TokenyardBackend::WorkPtr TokenyardBackend::message_on_device(const at::Tensor& tensor, int peer,
                                                              int tag, bool receives) {
  try {
    return message_of_batch(tensor, peer, tag, receives);
  } catch (...) {
    forget_batch();
    throw;
  }
}

TokenyardBackend::WorkPtr TokenyardBackend::message_of_batch(const at::Tensor& tensor, int peer,
                                                             int tag, bool receives) {
  const char* const peer_argument = receives ? "src" : "dst";
  constexpr int64_t kTagMax = (1 << 24) - 2;  // That of DeviceCollectives.
  const auto other = static_cast<uint32_t>(in_range({peer_argument}, peer, 0, size_ - 1));
  const auto number = static_cast<uint32_t>(in_range({"tag"}, tag, 0, kTagMax));
  const c10::Device where = tensor.device();
  const OpType type = receives ? OpType::RECV : OpType::SEND;
  const char* const title = receives ? "tokenyard:recv" : "tokenyard:send";
  const SharedDevice device = device_at(where);
  const int64_t timeout_ns = nanoseconds_of(options_->timeout).count();
  const auto add = [&](DeviceRun& run) {
    const Argument argument{"tensor"};
    const core::Array array =
        moved(argument, receives ? run.written(argument, tensor) : run.read(argument, tensor));
    run.add({.data = array.data != nullptr ? array.data : const_cast<std::byte*>(kNothing),
             .elements = array.elements,
             .type = array.type,
             .receives = receives,
             .peer = other,
             .tag = number});
  };
  Tensors inputs{tensor};  // A profile shows their shapes, of what is received, too.
  Tensors outputs = receives ? Tensors{tensor} : Tensors{};
  const std::shared_ptr<const GroupFacts> group = facts();
  const CallRecord record(*group, type, calls_, inputs, outputs);
  {
    const std::lock_guard lock(coalescing_mutex_);
    if (coalescing_) {
      if (!device_coalescing_)
        device_coalescing_ = device_work(OpType::COALESCED, "tokenyard:coalesced", {}, {}, group);
      if (!device_messages_)
        device_messages_ = std::make_unique<DeviceRun>(
            device, where, stream_at(where, Beside::messages), events_, timeout_ns);
      device_messages_->follow_caller();
      add(*device_messages_);
      device_coalescing_->add_outputs(outputs);
      ++calls_;
      return device_coalescing_;
    }
  }
  auto work = device_work(type, title, std::move(inputs), std::move(outputs), group);
  DeviceRun run(device, where, stream_at(where, Beside::messages), events_, timeout_ns);
  add(run);
  run.finish(*work);
  ++calls_;
  work->begun();
  return work;
}

}  // namespace tokenyard::torch_backend
