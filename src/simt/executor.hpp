/// Runs kernels on a CPU: one OS thread, one fiber per CUDA thread, and all blocks of all grids
/// resident, so that kernels that wait for one another make progress. The executor implements warp
/// words, barriers and scheduling; a Memory defines how memory behaves, and a TimeSource how time
/// passes.
///
///     launch   -> threads runnable
///     runnable -> blocked: at a warp word, a barrier, copies, a nap, a wait that found nothing new
///     blocked  -> runnable: the others arrived; time passed; something happened in memory
///     runnable -> ended; the grid ends with its last thread
///
/// If no thread is runnable, memory takes a step of its own. If it has none to take, time passes. A
/// run in which no thread waits for time either is deadlocked: an error lists what each awaits.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/host/machine.hpp"
#include "device/kernel.hpp"
#include "simt/fiber.hpp"
#include "simt/grid.hpp"
#include "simt/memory.hpp"
#include "simt/schedule.hpp"
#include "simt/time_source.hpp"

namespace tokenyard::simt {

class Executor final : public host_body::Machine {
 public:
  struct Services {
    Memory& memory;
    Schedule& schedule;
    TimeSource& time;
    std::function<void()> interrupt = [] {};  ///< called periodically; may throw to end `run`
  };
  explicit Executor(Services services);
  ~Executor() override;

  struct Shape {
    uint32_t blocks, threads;  ///< threads per block, a multiple of 32
    uint32_t extra_shared_bytes = 0;
    const AccessGuard* guard = nullptr;  ///< must outlive the grid
  };
  /// Adds a grid. Copies `params`; `kernel` must outlive the grid.
  std::shared_ptr<const Grid> launch(uint32_t rank, const KernelEntry& kernel, Shape shape,
                                     const void* params);
  /// Adds a host program: a fiber that launches kernels and waits with host_wait.
  void spawn_host(uint32_t rank, std::function<void()> program);
  /// Runs all threads and programs until `finished()`. Throws KernelMisuse, Deadlock, or the
  /// exception of a kernel, a host program or the interrupt; all grids are then abandoned.
  void run(const std::function<bool()>& finished);

  // For host programs, on their fibers.
  void host_wait(const std::function<bool()>& condition);
  uint32_t current_rank() const { return current_->name.rank; }

  /// Stops this rank: its threads and programs do not run until it is resumed, if it ever is.
  void stop_rank(uint32_t rank);
  void resume_rank(uint32_t rank);

  /// Returns the executor that runs on this OS thread; null outside `run`.
  static Executor* current();
  /// Returns the thread whose kernel code is running right now; null while the executor, the memory
  /// or a host program runs.
  const Thread* kernel_thread() const { return in_kernel_ ? current_ : nullptr; }
  /// Records a plain access by kernel code; called by compiler instrumentation.
  void plain_access(const void* address, uint32_t bytes, bool write, host_body::CodeAddress where);

  // The words.
  const host_body::Identity& identity() override { return current_->identity; }
  void* shared_memory() override { return current_->block->shared.get(); }
  void* shared_tail() override;
  void meet(host_body::WarpMeeting& meeting) override;
  void barrier(uint32_t id, uint32_t threads, bool wait, CodeAddress where) override;
  bool barrier_any(bool predicate, CodeAddress where) override;
  [[noreturn]] void misaligned(const void* at, uint32_t bytes, CodeAddress where) override;
  void load(const void* from, void* value, uint32_t bytes, Order order, Scope scope,
            CodeAddress where) override;
  void store(void* to, const void* value, uint32_t bytes, Order order, Scope scope,
             CodeAddress where) override;
  void modify(Modify what, void* at, const void* operand, void* old, uint32_t bytes, Order order,
              Scope scope, CodeAddress where) override;
  void compare_exchange(void* at, const void* expected, const void* desired, void* old,
                        uint32_t bytes, Order order, Scope scope, CodeAddress where) override;
  void fence(Fence kind, Scope scope, CodeAddress where) override;
  void completion_init(void* completion, uint32_t arrivals, CodeAddress where) override;
  void completion_arrive(void* completion, uint32_t expected_bytes, CodeAddress where) override;
  bool completion_done(void* completion, uint32_t parity, CodeAddress where) override;
  void fence_async(CodeAddress where) override;
  void bulk_load(void* to_shared, const void* from, uint32_t bytes, void* completion,
                 CodeAddress where) override;
  void bulk_store(void* to, const void* from_shared, uint32_t bytes, CodeAddress where) override;
  void bulk_commit(CodeAddress where) override;
  void bulk_wait(uint32_t groups, bool sources_only, CodeAddress where) override;
  bool mutated(CodeAddress where) override;
  void begin_part(uint32_t part) override { current_->part = part; }
  uint64_t now_ns() override;
  uint64_t cycles() override;
  void nap(uint32_t ns) override;
  void spin(uint32_t phase, uint32_t rank, uint64_t expected, uint64_t seen,
            CodeAddress where) override;

 private:
  class Inside;
  class OnThisThread;

  void start(Thread& thread, std::function<void()> body, StackPool& stacks);
  void resume(Thread& thread);
  void ended(Thread& thread);
  void abandon();

  void make_runnable(Thread& thread);
  void unlist(Thread& thread);  ///< removes it from the runnable threads
  void block(Blocked why);      ///< blocks the current thread until it is woken
  void yield();                 ///< lets others run; the current thread stays runnable
  void maybe_preempt();
  void wake_for_meeting(Block& block, uint32_t warp, uint32_t lanes);
  /// Wakes threads that wait for memory to change. `all` also wakes those whose watched words are
  /// unchanged: they may wait for time, or poll some word only now and then.
  void wake_watchers(bool all);
  void wake_nappers();
  void idle();
  void listen();  ///< calls the interrupt, if its period has passed

  void require_aligned(const void* at, uint32_t bytes, CodeAddress where);
  /// Checks an access that the current thread is about to make; ends the run if its part may not.
  void judge(const void* at, uint32_t bytes, TouchKind kind);

  void arrive(uint32_t id, uint32_t threads, bool wait, bool votes, bool predicate,
              CodeAddress where);
  void complete(BarrierState& barrier);
  void check_exit(Thread& thread);

  Services services_;
  const bool watches_words_;
  StackPool kernel_stacks_, program_stacks_;
  std::vector<std::shared_ptr<Grid>> grids_;
  std::vector<std::unique_ptr<Thread>> programs_;
  std::vector<uint32_t> free_ids_;
  uint32_t ids_ = 0, grids_launched_ = 0;

  std::vector<Thread*> runnable_;
  std::vector<const ThreadName*> runnable_names_;  ///< in the same order, for the schedule
  std::vector<Thread*> watchers_, nappers_;
  std::vector<uint32_t> stopped_ranks_;
  uint64_t progress_woken_for_ = 0;
  uint64_t all_woken_ns_ = 0;
  uint64_t events_ = 0;  ///< meetings and barriers completed, threads ended
  uint64_t idle_mark_ = 0;
  uint32_t idle_rounds_ = 0;

  std::vector<const ThreadName*> names_, waiting_names_;  ///< of the threads that have just met

  Thread* current_ = nullptr;
  bool in_kernel_ = false;
  std::exception_ptr failure_;
  std::chrono::steady_clock::time_point listened_;
};

/// Returns a list of what every blocked thread awaits; threads that await the same share a line.
std::string deadlock_report(std::span<const std::shared_ptr<Grid>> grids,
                            std::span<const std::unique_ptr<Thread>> programs);

}  // namespace tokenyard::simt
