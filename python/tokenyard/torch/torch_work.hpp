/// c10d's view of operations of the core.
#pragma once

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core_table.hpp"

namespace tokenyard::torch_backend {

/// The module's functions; set when the first group is made, never changed.
extern const core::Table* table;

struct DropWork {
  void operator()(core::Work* work) const { table->drop_work(work); }
};
using CoreWork = std::unique_ptr<core::Work, DropWork>;
struct DropFailure {
  void operator()(core::Failure* failure) const { table->drop_failure(failure); }
};
using CoreFailure = std::unique_ptr<core::Failure, DropFailure>;

/// What a capsule of the module holds; the capsule keeps it.
template <class Content>
Content* content_of(const pybind11::capsule& capsule, const char* name) {
  auto* content = PyCapsule_GetPointer(capsule.ptr(), name);
  if (content == nullptr) throw pybind11::error_already_set();
  return static_cast<Content*>(content);
}

inline core::Group* group_in(const pybind11::capsule& capsule) {
  return content_of<core::Group>(capsule, core::kGroupCapsule);
}

/// The package's exception, as pybind11 carries it.
[[noreturn]] inline void throw_python(CoreFailure failure) {
  const pybind11::gil_scoped_acquire locked;
  table->set_python_error(failure.get());
  failure.reset();
  throw pybind11::error_already_set();
}

inline std::exception_ptr exception_of(CoreFailure failure) {
  try {
    throw_python(std::move(failure));
  } catch (...) {
    return std::current_exception();
  }
}

/// Set when a group is aborted, which the core knows nothing of.
using AbortFlag = std::atomic<bool>;

/// tokenyard.Cancelled.
[[noreturn]] inline void throw_cancelled(const char* phase) {
  const pybind11::gil_scoped_acquire locked;
  const pybind11::object kind = pybind11::module_::import("tokenyard.errors").attr("Cancelled");
  const pybind11::object error =
      kind(std::string(phase) + ": its process group was aborted", pybind11::arg("phase") = phase);
  PyErr_SetObject(kind.ptr(), error.ptr());
  throw pybind11::error_already_set();
}

/// One call of torch's: an operation of the core, or several that were coalesced.
class TorchWork : public c10d::Work {
 public:
  TorchWork(int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> inputs,
            std::vector<at::Tensor> outputs, std::shared_ptr<const AbortFlag> aborted)
      : Work(rank, type, title, inputs),
        title_(title),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        aborted_(std::move(aborted)) {}

  ~TorchWork() override {
    // Nobody will wait any more, but the core still reads and writes the tensors.
    for (const CoreWork& part : parts_) {
      if (table->done(part.get())) continue;
      auto* held = new std::vector<at::Tensor>(inputs_);
      held->insert(held->end(), outputs_.begin(), outputs_.end());
      table->when_done(
          part.get(), [](void* tensors) { delete static_cast<std::vector<at::Tensor>*>(tensors); },
          held);
    }
  }

  const char* title() const { return title_; }
  void add(CoreWork part) { parts_.push_back(std::move(part)); }

  /// Called once all parts are there.
  void begun() {
    if (!recordFunctionEndCallback_) return;
    on_last_part([end = std::move(recordFunctionEndCallback_)] { end(); });
  }

  /// Another's operations, too: what `endCoalescing` returns.
  void include(const TorchWork& other) {
    for (const CoreWork& part : other.parts_) parts_.emplace_back(table->share_work(part.get()));
    inputs_.insert(inputs_.end(), other.inputs_.begin(), other.inputs_.end());
    outputs_.insert(outputs_.end(), other.outputs_.begin(), other.outputs_.end());
  }

  bool isCompleted() override {
    for (const CoreWork& part : parts_) {
      if (!table->done(part.get())) return false;
    }
    return true;
  }

  bool isSuccess() const override { return failure() == nullptr; }

  std::exception_ptr exception() const override {
    CoreFailure failed = failure();
    return failed ? exception_of(std::move(failed)) : nullptr;
  }

  int sourceRank() const override {
    return parts_.empty() ? -1 : static_cast<int>(table->source(parts_.front().get()));
  }

  std::vector<at::Tensor> result() override { return outputs_; }
  void synchronize() override { wait(); }

  /// Runs the operation here, if it has not been run yet: small ones need no other thread.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    const Clock::time_point end =
        timeout == kNoTimeout ? Clock::time_point::max() : Clock::now() + timeout;
    for (const CoreWork& part : parts_) {
      TORCH_CHECK(done_by(part, end), "tokenyard: ", c10d::opTypeToString(opType_),
                  " timed out: not done after ", timeout.count(), " ms");
    }
    return true;
  }

  void abort() override { TORCH_CHECK(false, "tokenyard aborts groups, not single operations"); }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const std::lock_guard lock(mutex_);
    if (!future_) {
      future_ =
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      on_last_part([future = future_,
                    self = c10::intrusive_ptr<TorchWork>::unsafe_reclaim_from_nonowning(this)] {
        if (const std::exception_ptr thrown = self->exception()) {
          future->setError(thrown);
        } else {
          future->markCompleted(c10::IValue(self->outputs_));
        }
      });
    }
    return future_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  /// How soon one who waits notices that his group was aborted.
  static constexpr std::chrono::nanoseconds kAbortNoticed = std::chrono::milliseconds(100);

  bool done_by(const CoreWork& part, Clock::time_point end) const {
    for (;;) {
      const std::chrono::nanoseconds left = std::max(end - Clock::now(), Clock::duration(0));
      core::Failure* failed = nullptr;
      const int done = table->wait(part.get(), std::min(left, kAbortNoticed).count(), &failed);
      if (done < 0) throw_python(CoreFailure(failed));
      if (done > 0) return true;
      if (*aborted_) throw_cancelled(title_);
      if (left <= kAbortNoticed) return false;
    }
  }

  CoreFailure failure() const {
    for (const CoreWork& part : parts_) {
      if (core::Failure* failed = table->failure_of(part.get())) return CoreFailure(failed);
    }
    return nullptr;
  }

  /// Calls once the last of the parts is done, on whatever thread that is.
  void on_last_part(std::function<void()> call) {
    struct Countdown {
      std::atomic<size_t> parts;
      std::function<void()> call;
      static void one_less(void* context) {
        auto* self = static_cast<Countdown*>(context);
        // Acquires what the other parts' threads wrote before they counted.
        if (self->parts.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
        self->call();
        delete self;
      }
    };
    if (parts_.empty()) return call();
    auto* countdown = new Countdown{parts_.size(), std::move(call)};
    // The last call may end this object.
    std::vector<CoreWork> parts;
    for (const CoreWork& part : parts_) parts.emplace_back(table->share_work(part.get()));
    for (const CoreWork& part : parts) table->when_done(part.get(), Countdown::one_less, countdown);
  }

  const char* const title_;
  std::vector<at::Tensor> inputs_, outputs_;
  const std::shared_ptr<const AbortFlag> aborted_;
  std::vector<CoreWork> parts_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace tokenyard::torch_backend
