/// Operations are coroutines that are polled. A task runs until it awaits something that is not
/// there yet; each poll of its Run then asks that one Wait, and resumes the task only when it is
/// ready. A step allocates nothing; a call of a task allocates its frame.
#pragma once

#include <coroutine>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace tokenyard::collectives {

class Run;

/// A coroutine that has not started or is suspended. Starts lazily: when another task awaits it or
/// a Run begins it.
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

/// A condition that a task may await. Lives in the frame of the waiting task.
class Wait {
 public:
  /// Tries; returns true once the condition holds. The task's run rethrows what it throws.
  virtual bool ready() = 0;
  /// Describes the wait for reports: "all_reduce data from rank 2".
  virtual std::string describe() const = 0;
  /// Returns the rank (of the group) awaited, if it is one rank.
  virtual std::optional<uint32_t> awaited() const { return std::nullopt; }

  bool await_ready() { return ready(); }
  void await_suspend(Task::Handle handle);
  void await_resume() {}

 protected:
  ~Wait() = default;
};

/// A task and everything it calls, for the code that polls it.
class Run {
 public:
  void begin(Task task) {
    root_ = std::move(task);
    root_.handle_.promise().run = this;
    resume_ = root_.handle_;
    wait_ = nullptr;
  }
  bool running() const { return root_.handle_ != nullptr; }
  /// Returns the current wait; null if the task is new or absent.
  const Wait* waiting_for() const { return wait_; }

  /// Runs the task as far as it can go, but at most `steps_max` steps, so that other threads get
  /// the lock. Returns true, and destroys the task, once it is done. Throws what the task threw.
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
  /// Returns whether a step was taken since the last call.
  bool take_progress() { return std::exchange(progress_, false); }

  /// Destroys the task, wherever it is.
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
