/// The tensors of one operation in the form of the core: contiguous, elements in index order. So
/// ranks may differ in layout.
///
///     contiguous    the tensor itself
///     any other     a contiguous copy -> the operation -> copied back, if the operation wrote it
///
/// A failed operation copies nothing back.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "arguments.hpp"
#include "tensors.hpp"

namespace tokenyard::torch_backend {

class Operands {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Arrays = std::vector<core::Array>;

  /// Returns a tensor that the operation reads. `describe`: `moved` or `reduced`.
  core::Array read(const Argument& argument, const at::Tensor& tensor, Describe describe = moved) {
    check(argument, tensor);
    return describe(argument, contiguous(tensor));
  }
  /// Returns a tensor that the operation writes. Copies its contents, too, so that elements which
  /// the operation does not write keep their values.
  core::Array written(const Argument& argument, const at::Tensor& tensor,
                      Describe describe = moved) {
    check(argument, tensor);
    check_writable(argument, tensor);
    const at::Tensor& copy = contiguous(tensor);
    if (!copy.is_same(tensor)) copied_back_.push_back({alias_of(tensor), copy});
    return describe(argument, copy);
  }

  Arrays read(const char* argument, const Tensors& tensors, Describe describe = moved) {
    Arrays arrays;
    for (size_t index = 0; index < tensors.size(); ++index)
      arrays.push_back(read({argument, index}, tensors[index], describe));
    return arrays;
  }
  Arrays written(const char* argument, const Tensors& tensors, Describe describe = moved) {
    Arrays arrays;
    for (size_t index = 0; index < tensors.size(); ++index)
      arrays.push_back(written({argument, index}, tensors[index], describe));
    check_no_overlap(argument, tensors);
    return arrays;
  }

  bool copy_back_is_due() const { return !copied_back_.empty() && !settled_.load(); }

  /// Copies results back once the operation has ended; the first caller copies, others wait.
  void settle(bool well) noexcept {
    const std::lock_guard lock(mutex_);
    if (!copy_back_is_due()) return;
    try {
      if (well) {
        for (const auto& [tensor, copy] : copied_back_) copy_into(tensor, copy);
      }
    } catch (...) {
      error_ = std::current_exception();
    }
    settled_.store(true);
  }
  /// Returns the error of copying back; null if there is none.
  std::exception_ptr error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  struct CopiedBack {
    at::Tensor tensor, copy;
  };

  /// Disables autograd and the caller's dispatch modes: these copies are not part of its program.
  class Below {
    const at::AutoDispatchBelowADInplaceOrView below_autograd_;
    const c10::impl::ExcludeDispatchKeyGuard below_python_{c10::python_ks};
  };

  static void copy_into(const at::Tensor& tensor, const at::Tensor& from) {
    const Below below;
    tensor.copy_(from);
  }

  /// Returns an alias with the tensor's current shape, which its owner may change meanwhile.
  static at::Tensor alias_of(const at::Tensor& tensor) {
    const Below below;
    return tensor.alias();
  }

  /// Returns the tensor, or a contiguous copy, and keeps it until the operation has ended.
  const at::Tensor& contiguous(const at::Tensor& tensor) {
    if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
      return held_.emplace_back(tensor);
    }
    const Below below;
    at::Tensor copy = at::empty(tensor.sizes(), tensor.options(), at::MemoryFormat::Contiguous);
    copy.copy_(tensor);
    return held_.emplace_back(std::move(copy));
  }

  Tensors held_;
  std::vector<CopiedBack> copied_back_;
  mutable std::mutex mutex_;
  std::atomic<bool> settled_ = false;
  std::exception_ptr error_;
};

}  // namespace tokenyard::torch_backend
