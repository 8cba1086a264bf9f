/// Operations are coroutines that somebody polls. A task runs until it waits for something that is
/// not there yet; whoever polls its run asks that one thing again, and resumes the task only when
/// it has come. A step costs no allocation, a call of a task one (its frame).
#pragma once

#include <coroutine>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace tokenyard::collectives {

class Run;

/// A coroutine that has not begun, or waits. Lazily begun: by `co_await` of another task, or by
/// Run.
class [[nodiscard]] Task {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  struct promise_type {
    struct BackToCaller {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(Handle handle) noexcept {
        return handle.promise().caller;
      }
      void await_resume() noexcept {}
    };

    Task get_return_object() { return Task(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    BackToCaller final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }

    Run* run = nullptr;
    std::coroutine_handle<> caller = std::noop_coroutine();
    std::exception_ptr error;
  };

  Task() = default;
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() noexcept { return false; }
  Handle await_suspend(Handle caller) noexcept {
    handle_.promise().run = caller.promise().run;
    handle_.promise().caller = caller;
    return handle_;
  }
  void await_resume() {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
  }

 private:
  friend class Run;
  explicit Task(Handle handle) : handle_(handle) {}
  Handle handle_ = nullptr;
};

/// Something that a task may wait for. Lives in the task's frame while it does.
class Wait {
 public:
  /// Tries; true if it is there. What it throws, the task's run throws.
  virtual bool ready() = 0;
  /// For reports: "all_reduce data from rank 2".
  virtual std::string describe() const = 0;
  /// The rank (of the group) that it waits for, if it is one.
  virtual std::optional<uint32_t> awaited() const { return std::nullopt; }

  bool await_ready() { return ready(); }
  void await_suspend(Task::Handle handle);
  void await_resume() {}

 protected:
  ~Wait() = default;
};

/// A task and all it calls, as whoever drives it sees them.
class Run {
 public:
  void begin(Task task) {
    root_ = std::move(task);
    root_.handle_.promise().run = this;
    resume_ = root_.handle_;
    wait_ = nullptr;
  }
  bool running() const { return root_.handle_ != nullptr; }
  /// Null if the task waits for nothing (it is new, or not there).
  const Wait* waiting_for() const { return wait_; }

  /// Goes on as far as it can, but at most so many steps, so that nobody who wants the same lock
  /// starves. True when the task is done, and then it is gone. Throws what the task threw.
  bool poll(int steps_max = 64) {
    for (int step = 0; step < steps_max && running(); ++step) {
      if (wait_ != nullptr && !wait_->ready()) return false;
      wait_ = nullptr;
      std::exchange(resume_, nullptr).resume();
      progress_ = true;
      if (!root_.handle_.done()) continue;
      const Task done = std::exchange(root_, Task());
      if (done.handle_.promise().error) std::rethrow_exception(done.handle_.promise().error);
    }
    return !running();
  }
  /// Whether a step was taken since the last time somebody asked.
  bool take_progress() { return std::exchange(progress_, false); }

  /// Gives the task up, wherever it is.
  void stop() {
    wait_ = nullptr;
    root_ = Task();
  }

 private:
  friend class Wait;
  Task root_;
  Wait* wait_ = nullptr;
  std::coroutine_handle<> resume_;
  bool progress_ = false;
};

inline void Wait::await_suspend(Task::Handle handle) {
  handle.promise().run->wait_ = this;
  handle.promise().run->resume_ = handle;
}

}  // namespace tokenyard::collectives
