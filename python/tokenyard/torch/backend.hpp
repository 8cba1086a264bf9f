/// torch's process group backend `tokenyard`: translates calls of c10d to operations of the core.
///
/// It decides nothing. The core, behind core_table.hpp, determines the membership, reacts to lost
/// ranks and moves bytes.
#pragma once

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core_table.hpp"
#include "device_run.hpp"
#include "torch_work.hpp"

namespace tokenyard::torch_backend {

class TokenyardBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Milliseconds = std::chrono::milliseconds;

  /// `group`: null if there is none until `reconfigure`. `backend_state`: see backend_state.py.
  /// `host_device`: whether CPU tensors take the way of device tensors, for tests.
  TokenyardBackend(core::Group* group, int rank, int size, Milliseconds timeout,
                   std::string group_name, std::vector<int64_t> global_ranks,
                   pybind11::object backend_state, bool host_device);
  ~TokenyardBackend() override;

  const std::string getBackendName() const override { return "tokenyard"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(Milliseconds timeout) override { options_->timeout = timeout; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  /// Makes the collectives on device tensors, as otherwise the first call on some does. Collective.
  void eagerConnectSingleDevice(at::Device device) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return calls_; }

  const pybind11::object& backend_state() const { return backend_state_; }
  /// Replaces the core group, after the backend's state was attached to another one.
  void move_to(core::Group* group) { take_place(group); }
  /// Makes every later call throw InvalidArgument that tells callers to use `instead`.
  void retire(const std::string& instead);
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  /// Changes the group's size; older torch versions fix it when the group is made.
  void resize(int size) { size_ = size; }
#endif
  c10d::ErrorType getError() override;
  void shutdown() override;
  void abort() override;
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<Backend> shrink(const std::vector<int64_t>& ranks_to_exclude, int flags,
                                     const c10::intrusive_ptr<Options>& options) override;
  bool supportsSplitting() const override { return true; }
  /// Returns a group of the same job; null on ranks that are not in it.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  /// Blocks until all ranks have joined; the work it returns is done.
  WorkPtr reconfigure(const c10d::ReconfigureOptions& options) override;
#endif

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;

  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  /// Overrides a function of newer torch versions, which call it for gather_into_tensor, too.
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options);
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const c10d::ScatterOptions& options) override;

  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;

  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 private:
  /// The arguments of an operation of the core.
  struct Call {
    core::Kind kind;
    std::vector<core::Array> in, out;
    Milliseconds timeout = c10d::kUnsetTimeout;
    core::Reduction reduction = core::Reduction::sum;
    int64_t peer = 0;
    const char* peer_argument = "root";
    int64_t tag = 0;
    bool from_anybody = false;
  };
  using OperandsPtr = std::shared_ptr<Operands>;
  using Calls = std::vector<std::pair<OperandsPtr, Call>>;
  using TorchWorkPtr = c10::intrusive_ptr<TorchWork>;

  TorchWorkPtr work(c10d::OpType type, const char* title, Tensors inputs, Tensors outputs) const;
  void submit(TorchWork& work, OperandsPtr operands, const Call& call);
  WorkPtr begun(TorchWorkPtr work);
  WorkPtr begin(TorchWorkPtr work, OperandsPtr operands, const Call& call);
  /// Starts several operations as one work; all are checked before the first starts.
  WorkPtr begin(TorchWorkPtr work, Calls calls);
  /// Returns an all_gather whose output is one tensor.
  Call into_one(Operands& operands, const Argument& whole, const at::Tensor& output,
                const Argument& part, const at::Tensor& input, Milliseconds timeout) const;
  /// Throws because there is no core group: it has ended, or this backend is retired.
  [[noreturn]] void refuse(const char* title) const;
  /// Replaces the core group, by none if null, and ends all waits in the previous one.
  void take_place(core::Group* group);

  // On device tensors: backend_device.cpp.
  /// Whether calls run in the caller's current stream, or beside it in one of the group's.
  enum class Beside : uint8_t { no, calls, messages };
  bool on_device(const at::Tensor& tensor) const;
  bool on_device(const Tensors& tensors) const {
    return !tensors.empty() && on_device(tensors.front());
  }
  SharedDevice device_at(c10::Device where);
  /// Returns what a profile tells of this group, once it has its name.
  std::shared_ptr<const GroupFacts> facts();
  c10::intrusive_ptr<DeviceWork> device_work(c10d::OpType type, const char* title, Tensors inputs,
                                             Tensors outputs,
                                             std::shared_ptr<const GroupFacts> group);
  DeviceStream stream_at(c10::Device where, Beside beside);
  template <class Body>
  WorkPtr run_on_device(c10d::OpType type, const char* title, Tensors inputs, Tensors outputs,
                        c10::Device where, bool beside, Milliseconds timeout, const Body& body);
  WorkPtr end_coalescing_on_device();
  WorkPtr reduce_on_device(core::Kind kind, c10d::OpType type, const char* title,
                           const Tensors& tensors, int root, const c10d::ReduceOp& op, bool beside,
                           Milliseconds timeout);
  WorkPtr broadcast_on_device(const at::Tensor& tensor, const c10d::BroadcastOptions& options);
  WorkPtr all_gather_on_device(c10d::OpType type, const char* title, const TensorLists& outputs,
                               const Tensors& inputs, const c10d::AllgatherOptions& options);
  WorkPtr all_gather_into_on_device(c10d::OpType type, const char* title, const Tensors& outputs,
                                    const Tensors& inputs, const c10d::AllgatherOptions& options);
  WorkPtr gather_on_device(const at::Tensor& input, const Tensors& list, const at::Tensor* whole,
                           const c10d::GatherOptions& options);
  WorkPtr scatter_on_device(const at::Tensor& output, const Tensors& list,
                            const c10d::ScatterOptions& options);
  WorkPtr reduce_scatter_on_device(const at::Tensor& output, const Tensors& list,
                                   const c10d::ReduceScatterOptions& options);
  WorkPtr reduce_scatter_tensor_on_device(const Tensors& outputs, const Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options);
  WorkPtr all_to_all_on_device(const Tensors& outputs, const Tensors& inputs,
                               const c10d::AllToAllOptions& options);
  WorkPtr all_to_all_base_on_device(const at::Tensor& output, const at::Tensor& input,
                                    const std::vector<int64_t>& output_splits,
                                    const std::vector<int64_t>& input_splits,
                                    const c10d::AllToAllOptions& options);
  WorkPtr barrier_on_device(const c10d::BarrierOptions& options);
  WorkPtr message_on_device(const at::Tensor& tensor, int peer, int tag, bool receives);
  WorkPtr message_of_batch(const at::Tensor& tensor, int peer, int tag, bool receives);
  void forget_batch();

  using SharedGroup = std::shared_ptr<core::Group>;
  struct Place {
    SharedGroup group;
    std::shared_ptr<AbortFlag> aborted;
  };
  Place place() const;
  /// Returns the number of parts that lists have now.
  int parts() const;

  mutable std::mutex place_mutex_;
  Place place_;
  std::string instead_;  // The group to use, once this one is retired.
  const c10::intrusive_ptr<Options> options_;
  pybind11::object backend_state_;
  std::atomic<uint64_t> calls_ = 0;
  std::mutex coalescing_mutex_;
  TorchWorkPtr coalescing_;
  c10::intrusive_ptr<DeviceWork> device_coalescing_;
  std::unique_ptr<DeviceRun> device_messages_;  ///< of the coalesced calls

  const bool host_device_;
  const SharedEvents events_ = std::make_shared<StreamEvents>();
  std::mutex facts_mutex_;
  std::shared_ptr<const GroupFacts> facts_;
  std::mutex device_mutex_;
  SharedDevice device_;
  c10::DeviceIndex device_index_ = -1;
  std::optional<c10::Stream> calls_stream_, messages_stream_;
  std::map<c10::StreamId, uint64_t> handles_;
};

}  // namespace tokenyard::torch_backend
