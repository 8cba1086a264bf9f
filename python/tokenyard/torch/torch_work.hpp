/// c10d's Work over operations of the core.
#pragma once

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core_table.hpp"
#include "operands.hpp"

namespace tokenyard::torch_backend {

/// The functions of `_tokenyard`; set when the first group is made, then constant.
extern const core::Table* table;

struct DropWork {
  void operator()(core::Work* work) const { table->drop_work(work); }
};
using CoreWork = std::unique_ptr<core::Work, DropWork>;
struct DropFailure {
  void operator()(core::Failure* failure) const { table->drop_failure(failure); }
};
using CoreFailure = std::unique_ptr<core::Failure, DropFailure>;

/// Returns the content of a capsule, which keeps it alive.
template <class Content>
Content* content_of(const pybind11::capsule& capsule, const char* name) {
  auto* content = PyCapsule_GetPointer(capsule.ptr(), name);
  if (content == nullptr) throw pybind11::error_already_set();
  return static_cast<Content*>(content);
}

inline core::Group* group_in(const pybind11::capsule& capsule) {
  return content_of<core::Group>(capsule, core::kGroupCapsule);
}

/// Throws the package's exception as pybind11's.
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

/// Set when a group is aborted; the core does not know of that.
using AbortFlag = std::atomic<bool>;

/// Throws tokenyard.Cancelled.
[[noreturn]] inline void throw_cancelled(const char* phase) {
  const pybind11::gil_scoped_acquire locked;
  const pybind11::object kind = pybind11::module_::import("tokenyard.errors").attr("Cancelled");
  const pybind11::object error =
      kind(std::string(phase) + ": its process group was aborted", pybind11::arg("phase") = phase);
  PyErr_SetObject(kind.ptr(), error.ptr());
  throw pybind11::error_already_set();
}

/// Throws tokenyard.PeerTimeout for an operation that goes on. `awaited`: the other rank, if known.
[[noreturn]] inline void throw_late(const char* phase, std::optional<int64_t> awaited, int rank,
                                    std::chrono::duration<double> waited) {
  const pybind11::gil_scoped_acquire locked;
  const pybind11::object kind = pybind11::module_::import("tokenyard.errors").attr("PeerTimeout");
  const std::string whom = awaited ? c10::str(" by rank ", *awaited) : "";
  const pybind11::object error =
      kind(c10::str(phase, " timed out: not done", whom, " after ", waited.count(),
                    " s; it goes on until its own deadline"),
           pybind11::arg("rank") = awaited.value_or(rank), pybind11::arg("phase") = phase,
           pybind11::arg("expected") = 1, pybind11::arg("seen") = 0,
           pybind11::arg("waited_s") = waited.count());
  PyErr_SetObject(kind.ptr(), error.ptr());
  throw pybind11::error_already_set();
}

/// An operation of the core and its tensors, which it keeps alive until it has ended.
class Part {
 public:
  /// Arranges that results are copied back as soon as it is done, even if no caller waits.
  Part(CoreWork work, std::shared_ptr<Operands> operands)
      : work_(std::move(work)), operands_(std::move(operands)) {
    if (!operands_->copy_back_is_due()) return;
    when_done(
        [](void* context) {
          const std::unique_ptr<Part> part(static_cast<Part*>(context));
          part->settle();
        },
        new Part(share()));
  }
  Part(Part&&) = default;

  /// Returns another handle to the same operation.
  Part share() const { return Part(Shared{}, CoreWork(table->share_work(work_.get())), operands_); }
  core::Work* work() const { return work_.get(); }
  const std::shared_ptr<Operands>& operands() const { return operands_; }
  bool done() const { return table->done(work()) && !operands_->copy_back_is_due(); }
  /// Copies results back once the operation is done; the first caller copies.
  void settle() const {
    if (operands_->copy_back_is_due())
      operands_->settle(CoreFailure(table->failure_of(work())) == nullptr);
  }
  bool failed() const {
    return CoreFailure(table->failure_of(work())) != nullptr || operands_->error() != nullptr;
  }
  /// Returns the error; null while it is in progress, and after success.
  std::exception_ptr exception() const {
    if (core::Failure* failed = table->failure_of(work())) return exception_of(CoreFailure(failed));
    return operands_->error();
  }
  void when_done(void (*call)(void* context), void* context) const {
    table->when_done(work(), call, context);
  }

 private:
  struct Shared {};
  Part(Shared, CoreWork work, std::shared_ptr<Operands> operands)
      : work_(std::move(work)), operands_(std::move(operands)) {}

  CoreWork work_;
  std::shared_ptr<Operands> operands_;
};

/// One call of torch: an operation of the core, or several coalesced ones.
class TorchWork : public c10d::Work {
 public:
  TorchWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
            std::vector<at::Tensor> outputs, std::shared_ptr<const AbortFlag> aborted)
      : Work(rank, type, title, inputs),
        title_(title),
        outputs_(std::move(outputs)),
        aborted_(std::move(aborted)) {}

  ~TorchWork() override {
    // No caller waits any more, but the core still accesses the tensors.
    for (const Part& part : parts_) {
      if (table->done(part.work())) continue;
      using Held = std::shared_ptr<Operands>;
      part.when_done([](void* held) { delete static_cast<Held*>(held); },
                     new Held(part.operands()));
    }
  }

  const char* title() const { return title_; }
  /// Sets the peer of a message, for errors.
  void set_peer(int64_t rank) { peer_ = rank; }
  void add(CoreWork work, std::shared_ptr<Operands> operands) {
    parts_.emplace_back(std::move(work), std::move(operands));
  }

  /// Ends the construction, once all parts are added.
  void begun() {
    if (!recordFunctionEndCallback_) return;
    on_last_part([end = std::move(recordFunctionEndCallback_)] { end(); });
  }

  /// Adds another work's operations, for the result of `endCoalescing`.
  void include(const TorchWork& other) {
    for (const Part& part : other.parts_) parts_.push_back(part.share());
    outputs_.insert(outputs_.end(), other.outputs_.begin(), other.outputs_.end());
  }

  bool isCompleted() override {
    return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.done(); });
  }

  bool isSuccess() const override {
    return std::none_of(parts_.begin(), parts_.end(),
                        [](const Part& part) { return part.failed(); });
  }

  std::exception_ptr exception() const override {
    for (const Part& part : parts_) {
      if (std::exception_ptr thrown = part.exception()) return thrown;
    }
    return nullptr;
  }

  int sourceRank() const override {
    return parts_.empty() ? -1 : static_cast<int>(table->source(parts_.front().work()));
  }

  /// Returns the ranks of the group that are missing from the result of any of its operations.
  std::set<uint32_t> failed_ranks() const {
    std::set<uint32_t> ranks;
    const auto take = [](void* taker, uint32_t rank) {
      static_cast<std::set<uint32_t>*>(taker)->insert(rank);
    };
    for (const Part& part : parts_) table->failed_ranks(part.work(), take, &ranks);
    return ranks;
  }

  std::vector<at::Tensor> result() override { return outputs_; }
  void synchronize() override { wait(); }

  /// Waits, and meanwhile runs the operation on this thread: small ones need no other.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    in_range({"timeout"}, timeout.count(), 0, std::numeric_limits<int64_t>::max());
    const Clock::time_point begin = Clock::now();
    const Clock::time_point end =
        timeout == kNoTimeout ? Clock::time_point::max() : begin + std::min(timeout, kTimeoutMax);
    for (const Part& part : parts_) {
      if (!done_by(part, end)) throw_late(title_, peer_, rank_, Clock::now() - begin);
      part.settle();
      if (const std::exception_ptr thrown = part.operands()->error())
        std::rethrow_exception(thrown);
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
  /// Longest time until a waiting thread notices that its group was aborted.
  static constexpr std::chrono::nanoseconds kAbortNoticed = std::chrono::milliseconds(100);

  bool done_by(const Part& part, Clock::time_point end) const {
    for (;;) {
      const std::chrono::nanoseconds left = std::max(end - Clock::now(), Clock::duration(0));
      core::Failure* failed = nullptr;
      const int done = table->wait(part.work(), std::min(left, kAbortNoticed).count(), &failed);
      if (done < 0) throw_python(CoreFailure(failed));
      if (done > 0) return true;
      if (*aborted_) throw_cancelled(title_);
      if (left <= kAbortNoticed) return false;
    }
  }

  /// Calls `call` once all parts are done and their results are copied back, on any thread.
  void on_last_part(std::function<void()> call) {
    struct Countdown {
      std::atomic<size_t> left;
      std::vector<Part> parts;
      std::function<void()> call;
      static void one_less(void* context) {
        auto* self = static_cast<Countdown*>(context);
        // Acquires what the other parts' threads wrote before they counted.
        if (self->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
        for (const Part& part : self->parts) part.settle();
        self->call();
        delete self;
      }
    };
    if (parts_.empty()) return call();
    auto* countdown = new Countdown{parts_.size(), shares(), std::move(call)};
    // The last call may destroy this object.
    const std::vector<Part> parts = shares();
    for (const Part& part : parts) part.when_done(Countdown::one_less, countdown);
  }

  std::vector<Part> shares() const {
    std::vector<Part> parts;
    for (const Part& part : parts_) parts.push_back(part.share());
    return parts;
  }

  const char* const title_;
  std::vector<at::Tensor> outputs_;
  const std::shared_ptr<const AbortFlag> aborted_;
  std::optional<int64_t> peer_;
  std::vector<Part> parts_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace tokenyard::torch_backend
