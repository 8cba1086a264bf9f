/// c10d's Work over calls on device tensors, which are enqueued in a stream.
///
/// Nothing waits for the host: `wait` makes the caller's current stream wait for the calls. A call
/// that fails on the device ends there, at its deadline at the latest, and the host learns of it
/// whenever it looks. A work that was not seen to be done before then has failed, unless it is
/// known that all ranks have finished it. Once the ranks have gone on (`go_on`), every work has
/// failed that not all of them have finished, also one that was seen to be done.
#pragma once

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <list>
#include <optional>
#include <stdexcept>
#include <thread>

#include "call_record.hpp"
#include "stream_events.hpp"
#include "torch_work.hpp"

namespace tokenyard::torch_backend {

/// Releases Python's lock, if this thread holds it. The lock of the collectives comes before
/// Python's: a call may hold it while it waits for another rank on the host, and must not find a
/// thread that waits for it and keeps all others from running. A thread that holds it calls no
/// Python.
class Unlocked {
 public:
  Unlocked() {
    if (PyGILState_Check() != 0) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

/// A share of device collectives, and of a call of theirs.
using SharedDevice = std::shared_ptr<core::Device>;
using SharedTicket = std::shared_ptr<core::DeviceTicket>;

inline SharedTicket shared_ticket(core::DeviceTicket* ticket) {
  return SharedTicket(ticket, [](core::DeviceTicket* last) {
    const Unlocked unlocked;  // The last ticket of a session may wait for its calls.
    table->drop_ticket(last);
  });
}

inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// One call of torch, or several coalesced ones. On a host calls are done once they have started.
class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
             std::vector<at::Tensor> outputs, bool host_waits,
             std::shared_ptr<const GroupFacts> group, uint64_t number)
      : Work(rank, type, title, inputs),
        title_(title),
        group_(std::move(group)),
        number_(number),
        outputs_(std::move(outputs)),
        host_waits_(host_waits) {}

  /// Adds calls whose end is the work's: the last of each kind stands for those before.
  void follow_call(SharedTicket call) { call_ = std::move(call); }
  void follow_messages(SharedTicket messages) { messages_ = std::move(messages); }

  /// Adds the calls that have been enqueued in `stream` so far. `beside`: the caller goes on in
  /// another one, and later calls of others follow in this one.
  void follow(c10::Stream stream, const SharedEvents& events, bool beside) {
    const std::lock_guard lock(mutex_);
    ends_.emplace_back(events, stream);
    if (beside) ends_.back().mark();
  }
  void add_outputs(const std::vector<at::Tensor>& outputs) {
    outputs_.insert(outputs_.end(), outputs.begin(), outputs.end());
  }
  /// Ends the construction.
  void begun() {
    if (recordFunctionEndCallback_) recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }

  bool isCompleted() override {
    mark();
    look();
    return outcome_ != Outcome::pending;
  }
  bool isSuccess() const override {
    look();
    return outcome_ == Outcome::done;
  }
  std::exception_ptr exception() const override {
    look();
    return outcome_ == Outcome::failed ? failure() : nullptr;
  }
  std::vector<at::Tensor> result() override { return outputs_; }

  void synchronize() override { wait(); }

  /// Makes the current stream wait. The host waits, too, for a barrier and if there is a timeout.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    in_range({"timeout"}, timeout.count(), 0, std::numeric_limits<int64_t>::max());
    const CallRecord record(*group_, number_);
    {
      const std::lock_guard lock(mutex_);
      for (StreamEnd& end : ends_) end.block(current_stream(end.stream().device()));
    }
    if (host_waits_ || timeout != kNoTimeout) wait_on_host(timeout);
    look();
    if (outcome_ == Outcome::failed) std::rethrow_exception(failure());
    return true;
  }

  void abort() override { TORCH_CHECK(false, "tokenyard aborts groups, not single operations"); }

  /// Returns a future that is completed in stream order, as the caller's streams see it.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    look();  // Before the lock, which no thread may hold that waits for Python's.
    const std::exception_ptr failed = outcome_ == Outcome::failed ? failure() : nullptr;
    const std::lock_guard lock(mutex_);
    if (future_) return future_;
    std::vector<c10::Device> devices;
    for (const StreamEnd& end : ends_)
      if (std::find(devices.begin(), devices.end(), end.stream().device()) == devices.end())
        devices.push_back(end.stream().device());
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), devices);
    if (failed) {
      future_->setError(failed);
    } else if (ends_.empty()) {
      future_->markCompleted(c10::IValue(outputs_));
    } else {
      const c10::StreamGuard guard(ends_.back().stream());
      for (StreamEnd& end : ends_) end.block(ends_.back().stream());
      future_->markCompleted(c10::IValue(outputs_));
    }
    return future_;
  }

 private:
  enum class Outcome : uint8_t { pending, done, failed };

  /// Marks the caller's own stream, which has gone on since: somebody asks for its end.
  void mark() {
    const std::lock_guard lock(mutex_);
    for (StreamEnd& end : ends_) end.mark();
  }
  bool ended() const {
    const std::lock_guard lock(mutex_);
    return std::all_of(ends_.begin(), ends_.end(),
                       [](const StreamEnd& end) { return end.passed(); });
  }
  CoreFailure failure_seen(bool over) const {
    const Unlocked unlocked;
    core::Failure* failed = call_ ? table->device_failure(call_.get(), over) : nullptr;
    if (failed == nullptr && messages_ && outcome_ != Outcome::done)
      failed = table->device_failure(messages_.get(), over);
    return CoreFailure(failed);
  }
  /// Returns the error of a work that has failed, as it is known now.
  std::exception_ptr failure() const {
    if (CoreFailure failed = failure_seen(true)) return exception_of(std::move(failed));
    // Ranks have gone on since, and the record of failed messages is empty.
    return std::make_exception_ptr(
        std::runtime_error(c10::str(title_, ": failed before the ranks of its group went on")));
  }
  /// Learns how the calls have ended, if they have. A work that is done may still turn out to have
  /// failed on another rank.
  void look() const {
    if (outcome_ == Outcome::failed) return;
    const bool over = ended();
    if (failure_seen(over))
      outcome_ = Outcome::failed;
    else if (over)
      outcome_ = Outcome::done;
  }
  void wait_on_host(std::chrono::milliseconds timeout) {
    const Clock::time_point begin = Clock::now();
    const Clock::time_point end =
        timeout == kNoTimeout ? Clock::time_point::max() : begin + std::min(timeout, kTimeoutMax);
    while (!isCompleted()) {
      if (Clock::now() >= end) throw_late(title_, std::nullopt, rank_, Clock::now() - begin);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  using Clock = std::chrono::steady_clock;
  const char* const title_;
  const std::shared_ptr<const GroupFacts> group_;
  const uint64_t number_;
  std::vector<at::Tensor> outputs_;
  const bool host_waits_;
  SharedTicket call_, messages_;
  std::list<StreamEnd> ends_;
  mutable std::atomic<Outcome> outcome_ = Outcome::pending;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace tokenyard::torch_backend
