/// The enqueueing of one work's calls on device tensors: checks tensors, copies those that are not
/// contiguous, and orders the calls behind the caller's current stream.
#pragma once

#include <c10/core/StreamGuard.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "device_work.hpp"
#include "tensors.hpp"

namespace tokenyard::torch_backend {

/// A stream with its driver's handle; none on a host.
struct DeviceStream {
  std::optional<c10::Stream> stream;
  uint64_t handle = 0;
};

class DeviceRun {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// `on`: the caller's current stream, or one beside it, which then waits for it.
  DeviceRun(SharedDevice device, c10::Device where, DeviceStream on, SharedEvents events,
            int64_t timeout_ns)
      : device_(std::move(device)),
        where_(where),
        on_(on),
        events_(std::move(events)),
        timeout_ns_(timeout_ns) {
    follow_caller();
  }

  /// Makes the stream wait for what the caller has enqueued so far.
  void follow_caller() {
    if (!on_.stream) return;
    const c10::Stream current = current_stream(where_);
    beside_ = current != *on_.stream;
    if (!beside_) return;
    StreamEnd(events_, current).block(*on_.stream);
  }

  /// Returns the tensor, or a contiguous copy, to be read.
  at::Tensor read(const Argument& argument, const at::Tensor& tensor) {
    check(argument, tensor, where_);
    return used(contiguous(tensor));
  }
  /// The same to be written; `finish` copies the result back. Elements that are not written keep
  /// their values.
  at::Tensor written(const Argument& argument, const at::Tensor& tensor) {
    check(argument, tensor, where_);
    check_writable(argument, tensor);
    at::Tensor copy = contiguous(tensor);
    if (!copy.is_same(tensor)) copied_back_.emplace_back(tensor, copy);
    return used(copy);
  }
  /// Returns the elements of a list, one tensor after another, to be read.
  at::Tensor read_all(const char* argument, const Tensors& list) {
    for (size_t index = 0; index < list.size(); ++index)
      check({argument, index}, list[index], where_);
    require_one_type(argument, list);
    const Guard guard(on_);
    Tensors flat;
    for (const at::Tensor& tensor : list) flat.push_back(used(tensor).reshape({-1}));
    return used(at::cat(flat));
  }
  /// Returns memory for the elements of a list, which `finish` copies there.
  at::Tensor written_all(const char* argument, const Tensors& list) {
    int64_t elements = 0;
    for (size_t index = 0; index < list.size(); ++index) {
      check({argument, index}, list[index], where_);
      check_writable({argument, index}, list[index]);
      elements += list[index].numel();
    }
    require_one_type(argument, list);
    check_no_overlap(argument, list);
    const Guard guard(on_);
    at::Tensor whole = used(at::empty({elements}, list.front().options()));
    int64_t begin = 0;
    for (const at::Tensor& tensor : list) {
      copied_back_.emplace_back(tensor,
                                whole.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
    return whole;
  }

  /// Enqueues a call.
  void call(core::DeviceCall call) {
    call.stream = on_.handle;
    call.timeout_ns = timeout_ns_;
    core::DeviceTicket* made = nullptr;
    if (CoreFailure failed =
            enqueued([&] { return table->device_call(device_.get(), &call, &made); }))
      throw_python(std::move(failed));
    last_call_ = shared_ticket(made);
  }
  /// Returns the last call; null if there was none.
  const SharedTicket& last_call() const { return last_call_; }
  void add(const core::DeviceMessage& message) { messages_.push_back(message); }

  /// Enqueues the messages and the copies of results, and tells the work where they end.
  void finish(DeviceWork& work) {
    if (last_call_) work.follow_call(last_call_);
    if (!messages_.empty()) {
      core::DeviceTicket* made = nullptr;
      CoreFailure failed = enqueued([&] {
        return table->device_exchange(device_.get(), messages_.data(), messages_.size(), on_.handle,
                                      timeout_ns_, &made);
      });
      if (failed) throw_python(std::move(failed));
      work.follow_messages(shared_ticket(made));
    }
    {
      const Guard guard(on_);
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      const c10::impl::ExcludeDispatchKeyGuard below_python{c10::python_ks};
      for (const auto& [tensor, copy] : copied_back_) used(tensor).copy_(copy);
    }
    if (!on_.stream) return;
    protect();
    work.follow(*on_.stream, events_, beside_);
  }

  /// Keeps the allocator from giving the tensors' memory to the caller's stream before the calls
  /// have ended. Called also where a later step has thrown: calls may have been enqueued.
  void protect() const {
    if (!on_.stream || !beside_) return;
    const c10::impl::VirtualGuardImpl guard(where_.type());
    for (const at::Tensor& tensor : used_)
      if (tensor.has_storage())
        guard.recordDataPtrOnStream(tensor.storage().data_ptr(), *on_.stream);
  }

 private:
  /// Makes torch's own operations run in the stream.
  struct Guard {
    explicit Guard(const DeviceStream& on) {
      if (on.stream) guard.emplace(*on.stream);
    }
    std::optional<c10::StreamGuard> guard;
  };

  template <class Enqueue>
  static CoreFailure enqueued(const Enqueue& enqueue) {
    const Unlocked unlocked;
    return CoreFailure(enqueue());
  }

  const at::Tensor& used(const at::Tensor& tensor) { return used_.emplace_back(tensor); }

  at::Tensor contiguous(const at::Tensor& tensor) {
    if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor;
    const Guard guard(on_);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard below_python{c10::python_ks};
    at::Tensor copy = at::empty(tensor.sizes(), tensor.options(), at::MemoryFormat::Contiguous);
    copy.copy_(used(tensor));
    return copy;
  }

  static void require_one_type(const char* argument, const Tensors& list) {
    for (size_t index = 1; index < list.size(); ++index)
      if (list[index].scalar_type() != list[0].scalar_type())
        refuse({argument, index}, c10::str("a tensor of ", list[0].scalar_type(), " as the first"),
               c10::str(list[index].scalar_type()));
  }

  const SharedDevice device_;
  const c10::Device where_;
  const DeviceStream on_;
  const SharedEvents events_;
  const int64_t timeout_ns_;
  bool beside_ = false;
  Tensors used_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copied_back_;
  std::vector<core::DeviceMessage> messages_;
  SharedTicket last_call_;
};

/// Returns whether the caller goes on beside the call. Older torch versions do not tell.
template <class Options>
bool goes_beside(const Options& options) {
  if constexpr (requires { options.asyncOp; })
    return options.asyncOp;
  else
    return true;
}

/// Describes the elements of a tensor of a device that a call reduces. A sum of complex numbers is
/// that of their parts.
inline core::Array reduced_on_device(const Argument& argument, const at::Tensor& tensor,
                                     core::Reduction reduction) {
  const auto elements = static_cast<uint64_t>(tensor.numel());
  const bool of_parts = reduction == core::Reduction::sum || reduction == core::Reduction::average;
  if (tensor.scalar_type() == at::kFloat8_e4m3fn)
    return {tensor.data_ptr(), elements, core::Type::float8_e4m3fn};
  if (tensor.scalar_type() == at::kFloat8_e5m2)
    return {tensor.data_ptr(), elements, core::Type::float8_e5m2};
  if (tensor.is_complex() && of_parts && tensor.scalar_type() != at::kComplexHalf)
    return {tensor.data_ptr(), 2 * elements,
            tensor.scalar_type() == at::kComplexFloat ? core::Type::float32 : core::Type::float64};
  return reduced(argument, tensor);
}

}  // namespace tokenyard::torch_backend
