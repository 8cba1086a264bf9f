/// Records of calls on device tensors in torch's profiles and execution traces: the event
/// "record_param_comms", by which tools tell collectives, their group, elements and types.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tokenyard::torch_backend {

/// A group, as records name it.
struct GroupFacts {
  /// `global_ranks`: those of the group's ranks; empty if it has all of them.
  GroupFacts(std::string name, std::string description, int rank, int size,
             const std::vector<uint64_t>& global_ranks)
      : names(std::move(name), std::move(description)), rank(rank), size(size) {
    if (global_ranks.empty()) return;
    first = static_cast<int>(global_ranks.front());
    stride = global_ranks.size() < 2 ? 1 : static_cast<int>(global_ranks[1] - global_ranks[0]);
    for (size_t index = 2; index < global_ranks.size(); ++index)
      if (global_ranks[index] - global_ranks[index - 1] != static_cast<uint64_t>(stride))
        stride = -1;  // As torch's tools expect it of ranks at no equal distance.
  }

  std::tuple<std::string, std::string> names;
  int rank, size, first = 0, stride = 1;
};

/// Returns the name that tools know a call by.
inline std::string recorded_name(c10d::OpType type) {
  if (type == c10d::OpType::ALLTOALL || type == c10d::OpType::ALLTOALL_BASE) return "all_to_all";
  std::string name = c10d::opTypeToString(type);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

/// Lasts as long as the call's own steps. Without a profiler it does nothing.
class CallRecord {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// `number`: of the call within its group.
  CallRecord(const GroupFacts& group, c10d::OpType type, uint64_t number, const Tensors& inputs,
             const Tensors& outputs)
      : function_(at::RecordScope::FUNCTION) {
    if (function_.isActive()) begin(group, recorded_name(type), number, inputs, outputs);
  }
  /// The caller's wait for the call.
  CallRecord(const GroupFacts& group, uint64_t number) : function_(at::RecordScope::FUNCTION) {
    if (function_.isActive()) begin(group, "wait", number, {}, {});
  }

 private:
  void begin(const GroupFacts& group, const std::string& name, uint64_t number,
             const Tensors& inputs, const Tensors& outputs) {
    const at::ScalarType type = inputs.empty()
                                    ? outputs.empty() ? at::kByte : outputs.front().scalar_type()
                                    : inputs.front().scalar_type();
    const std::vector<int64_t> no_splits;
    const auto facts = std::make_shared<torch::ParamCommsDebugInfo>(
        group.names, group.rank, std::string(name), elements(inputs), elements(outputs), type,
        no_splits, no_splits, group.first, group.stride, group.size);
    guard_.emplace(c10::DebugInfoKind::PARAM_COMMS_INFO, facts);
    const std::vector<c10::IValue> inputs_told{
        inputs,       std::tuple<int64_t, bool>(number, false),
        group.names,  group.rank,
        name,         no_splits,
        no_splits,    group.first,
        group.stride, group.size,
        true};
    function_.before(at::kParamCommsCallName,
                     c10::ArrayRef<const c10::IValue>(inputs_told.data(), inputs_told.size()));
    if (function_.needsOutputs())
      function_.setOutputs(std::vector<c10::IValue>(1, c10::IValue(outputs)));
  }
  static int64_t elements(const Tensors& tensors) {
    int64_t all = 0;
    for (const at::Tensor& tensor : tensors) all += tensor.numel();
    return all;
  }

  std::optional<c10::DebugInfoGuard> guard_;
  at::RecordFunction function_;  // Ends first: the profiler reads the facts at the end.
};

}  // namespace tokenyard::torch_backend
