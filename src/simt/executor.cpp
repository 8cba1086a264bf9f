#include "simt/executor.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "simt/inside.hpp"
#include "simt/misuse.hpp"
#include "simt/sanitizers.hpp"

namespace tokenyard::simt {

namespace {

#if TOKENYARD_ASAN || TOKENYARD_TSAN
constexpr size_t kKernelStackKib = 256;  // Sanitizers pad every local variable.
#else
constexpr size_t kKernelStackKib = 64;
#endif
// Not a power of two, so that the stacks do not all compete for the same few cache sets.
constexpr size_t kKernelStack = (kKernelStackKib << 10) + 17 * 64;
constexpr size_t kProgramStack = 1 << 20;
constexpr auto kListenEvery = std::chrono::milliseconds(50);
constexpr uint32_t kTurnsBetweenLooks = 4096;
constexpr uint64_t kAllWakeEveryNs = 50'000;
constexpr uint32_t kNapsMax = 1000;  // Idle rounds are multiplied by this while threads nap.
constexpr int kPoison = 0xdb;        // Fills uninitialised shared memory with implausible numbers.

thread_local Executor* running = nullptr;

}  // namespace

std::string describe(const Thread& thread) {
  const ThreadName& name = thread.name;
  if (!thread.block) return fmt::format("host program of rank {}", name.rank);
  return fmt::format("rank {} block {} warp {} lane {}", name.rank, name.block, name.thread / 32,
                     name.thread % 32);
}

class Executor::OnThisThread {
 public:
  explicit OnThisThread(Executor& executor) : outer_(running) {
    running = &executor;
    host_body::set_machine(&executor);
  }
  ~OnThisThread() {
    running = outer_;
    host_body::set_machine(outer_);
  }

 private:
  Executor* outer_;
};

Executor::Executor(Services services)
    : services_(std::move(services)),
      watches_words_(services_.memory.is_plain()),
      kernel_stacks_(kKernelStack),
      program_stacks_(kProgramStack) {}

Executor::~Executor() = default;

Executor* Executor::current() {
  return running;
}

// ---- launching --------------------------------------------------------------------------------

std::shared_ptr<const Grid> Executor::launch(uint32_t rank, const KernelEntry& kernel, Shape shape,
                                             const void* params) {
  auto grid = std::make_shared<Grid>();
  grid->rank = rank;
  grid->index = grids_launched_++;
  grid->kernel = &kernel;
  grid->guard = shape.guard;
  const auto* bytes = static_cast<const std::byte*>(params);
  grid->params.assign(bytes, bytes + kernel.params_bytes);
  std::vector<ThreadName> names;
  for (uint32_t b = 0; b < shape.blocks; ++b) {
    Block& block = *grid->blocks.emplace_back(std::make_unique<Block>());
    block.grid = grid.get();
    block.index = b;
    block.tail_offset = (kernel.shared_bytes + 127) / 128 * 128;
    const size_t shared_bytes = (block.tail_offset + shape.extra_shared_bytes + 127) / 128 * 128;
    block.shared = {static_cast<std::byte*>(std::aligned_alloc(128, shared_bytes)), std::free};
    std::memset(block.shared.get(), kPoison, shared_bytes);
    block.meetings.resize(shape.threads / 32);
    block.exited_lanes.resize(shape.threads / 32);
    block.any_result.resize(shape.threads);
    for (uint32_t t = 0; t < shape.threads; ++t) {
      Thread& thread = *block.threads.emplace_back(std::make_unique<Thread>());
      uint32_t id = ids_;
      if (free_ids_.empty()) {
        ++ids_;
      } else {
        id = free_ids_.back();
        free_ids_.pop_back();
      }
      thread.name = {.id = id, .rank = rank, .grid = grid->index, .block = b, .thread = t};
      thread.identity = {.thread = t, .threads = shape.threads, .block = b, .blocks = shape.blocks};
      thread.block = &block;
      names.push_back(thread.name);
    }
  }
  grid->running = static_cast<uint32_t>(names.size());
  services_.memory.grid_begins(rank, grid->index, names);
  for (const auto& block : grid->blocks) {
    services_.memory.block_begins(block->threads[0]->name, block->shared.get(),
                                  block->tail_offset + shape.extra_shared_bytes);
    for (const auto& thread : block->threads) {
      const void* kernel_params = grid->params.data();
      start(
          *thread,
          [this, entry = kernel.on_host, kernel_params] {
            in_kernel_ = true;
            entry(kernel_params);
            in_kernel_ = false;
          },
          kernel_stacks_);
    }
  }
  grids_.push_back(grid);
  return grid;
}

void Executor::spawn_host(uint32_t rank, std::function<void()> program) {
  Thread& thread = *programs_.emplace_back(std::make_unique<Thread>());
  thread.name = {.id = UINT32_MAX, .rank = rank, .grid = UINT32_MAX, .block = 0, .thread = 0};
  start(thread, std::move(program), program_stacks_);
}

void Executor::start(Thread& thread, std::function<void()> body, StackPool& stacks) {
  thread.fiber = std::make_unique<Fiber>(stacks, [this, body = std::move(body)] {
    try {
      body();
    } catch (...) {
      in_kernel_ = false;
      if (!failure_) failure_ = std::current_exception();
    }
  });
  make_runnable(thread);
}

// ---- running ----------------------------------------------------------------------------------

void Executor::run(const std::function<bool()>& finished) {
  const OnThisThread here(*this);
  listened_ = std::chrono::steady_clock::now();
  uint32_t turns = 0;
  try {
    while (!finished()) {
      if (services_.schedule.step_memory()) services_.memory.step();
      if (services_.memory.progress() != progress_woken_for_ &&
          (runnable_.empty() || services_.schedule.wakes(runnable_.size())))
        wake_watchers(!watches_words_);
      if (!nappers_.empty()) wake_nappers();
      if (++turns % kTurnsBetweenLooks == 0) {
        listen();
        if (watches_words_) wake_watchers(true);
      }
      if (runnable_.empty()) {
        idle();
        continue;
      }
      resume(*runnable_[services_.schedule.pick(runnable_names_)]);
      if (failure_) std::rethrow_exception(failure_);
    }
  } catch (...) {
    abandon();
    throw;
  }
}

void Executor::resume(Thread& thread) {
  current_ = &thread;
  thread.fiber->resume();
  current_ = nullptr;
  const bool barely = thread.blocked == Blocked::barrier || thread.blocked == Blocked::meeting;
  const bool whole = barely ? thread.fiber->is_within_stack() : thread.fiber->stack_is_whole();
  if (!whole)
    throw InternalError(fmt::format("{} overflowed its stack of {} KiB", describe(thread),
                                    (thread.block ? kKernelStack : kProgramStack) >> 10));
  if (thread.fiber->ended()) ended(thread);
}

void Executor::ended(Thread& thread) {
  unlist(thread);
  thread.exited = true;
  thread.fiber.reset();
  ++events_;
  if (!thread.block) return;
  Block& block = *thread.block;
  Grid& grid = *block.grid;
  ++block.exited;
  block.exited_lanes[thread.name.thread / 32] |= 1u << thread.name.thread % 32;
  if (!block.first_exited) block.first_exited = &thread;
  if (!failure_) check_exit(thread);
  services_.memory.thread_ends(thread.name);
  if (--grid.running > 0) return;
  services_.memory.grid_ends(grid.rank, grid.index);
  for (const auto& done : grid.blocks) {
    for (const auto& each : done->threads) free_ids_.push_back(each->name.id);
  }
  std::erase_if(grids_, [&](const auto& other) { return other.get() == &grid; });
}

void Executor::abandon() {
  runnable_.clear();
  runnable_names_.clear();
  watchers_.clear();
  nappers_.clear();
  grids_.clear();
  programs_.clear();
  free_ids_.clear();
  ids_ = 0;
  failure_ = nullptr;
  current_ = nullptr;
  in_kernel_ = false;
}

void Executor::make_runnable(Thread& thread) {
  if (std::find(stopped_ranks_.begin(), stopped_ranks_.end(), thread.name.rank) !=
      stopped_ranks_.end()) {
    thread.blocked = Blocked::stopped;
    return;
  }
  thread.blocked = Blocked::no;
  thread.place = runnable_.size();
  runnable_.push_back(&thread);
  runnable_names_.push_back(&thread.name);
}

void Executor::unlist(Thread& thread) {
  if (thread.place >= runnable_.size() || runnable_[thread.place] != &thread) return;
  runnable_[thread.place] = runnable_.back();
  runnable_[thread.place]->place = thread.place;
  runnable_names_[thread.place] = runnable_names_.back();
  runnable_.pop_back();
  runnable_names_.pop_back();
}

void Executor::block(Blocked why) {
  Thread& me = *current_;
  unlist(me);
  me.blocked = why;
  if (why == Blocked::condition || why == Blocked::copies || why == Blocked::host_wait)
    watchers_.push_back(&me);
  if (why != Blocked::condition) me.watched.forget();
  if (why == Blocked::nap) nappers_.push_back(&me);
  me.fiber->yield();
}

void Executor::yield() {
  current_->fiber->yield();
}

void Executor::maybe_preempt() {
  if (services_.schedule.preempt(current_->name)) yield();
}

void Executor::stop_rank(uint32_t rank) {
  stopped_ranks_.push_back(rank);
  const auto stop = [&](std::vector<Thread*> threads) {
    for (Thread* thread : threads) {
      if (thread->name.rank != rank) continue;
      unlist(*thread);
      thread->blocked = Blocked::stopped;
    }
  };
  stop(runnable_);
  stop(watchers_);
  stop(nappers_);
  const auto gone = [](Thread* thread) { return thread->blocked == Blocked::stopped; };
  std::erase_if(watchers_, gone);
  std::erase_if(nappers_, gone);
  if (current_ && current_->name.rank == rank) current_->fiber->yield();
}

void Executor::resume_rank(uint32_t rank) {
  std::erase(stopped_ranks_, rank);
  // Threads that waited look again.
  const auto resume = [&](Thread& thread) {
    if (thread.name.rank == rank && thread.blocked == Blocked::stopped) make_runnable(thread);
  };
  for (const auto& grid : grids_) {
    for (const auto& block : grid->blocks) {
      for (const auto& thread : block->threads) resume(*thread);
    }
  }
  for (const auto& program : programs_) resume(*program);
}

// ---- waiting ----------------------------------------------------------------------------------

void Executor::wake_watchers(bool all) {
  progress_woken_for_ = services_.memory.progress();
  std::vector<Thread*> waiting;
  waiting.swap(watchers_);
  for (Thread* thread : waiting) {
    if (!all && thread->watched.hold_the_same())
      watchers_.push_back(thread);
    else
      make_runnable(*thread);
  }
}

void Executor::wake_nappers() {
  const uint64_t now = services_.time.now_ns();
  std::erase_if(nappers_, [&](Thread* thread) {
    if (thread->wake_ns > now) return false;
    make_runnable(*thread);
    return true;
  });
}

void Executor::idle() {
  const uint64_t mark = services_.memory.progress() + events_;
  if (mark != idle_mark_) idle_rounds_ = 0;
  idle_mark_ = mark;
  if (services_.memory.step_when_idle()) {
    wake_watchers(true);
    return;
  }
  // A napping thread polls again and may count its polls, but a deadlock may nap for ever too.
  const uint64_t rounds_max =
      uint64_t{services_.time.rounds_max()} * (nappers_.empty() ? 1 : kNapsMax);
  if ((watchers_.empty() && nappers_.empty()) || idle_rounds_ > rounds_max)
    throw Deadlock(deadlock_report(grids_, programs_));
  uint64_t wake_ns = 0;
  for (const Thread* thread : nappers_)
    wake_ns = wake_ns ? std::min(wake_ns, thread->wake_ns) : thread->wake_ns;
  services_.time.idle(idle_rounds_++, wake_ns);
  listen();
  wake_nappers();
  const uint64_t now_ns = watches_words_ ? services_.time.now_ns() : 0;
  const bool all = !watches_words_ || now_ns - all_woken_ns_ >= kAllWakeEveryNs;
  if (all) all_woken_ns_ = now_ns;
  wake_watchers(all);
}

void Executor::listen() {
  const auto now = std::chrono::steady_clock::now();
  if (now - listened_ < kListenEvery) return;
  listened_ = now;
  services_.interrupt();
}

void Executor::host_wait(const std::function<bool()>& condition) {
  while (!condition()) block(Blocked::host_wait);
}

void Executor::spin(uint32_t phase, uint32_t rank, uint64_t expected, uint64_t seen,
                    CodeAddress where) {
  const Inside inside(*this);
  Thread& me = *current_;
  me.waiting = {.where = where, .phase = phase, .rank = rank, .expected = expected, .seen = seen};
  // Sleeps if nothing has happened since before the condition was last evaluated.
  if (services_.memory.progress() == me.progress_seen || me.watched.hold_the_same())
    block(Blocked::condition);
  else
    yield();
  me.progress_seen = services_.memory.progress();
  me.watched.forget();
}

void Executor::nap(uint32_t ns) {
  const Inside inside(*this);
  if (ns == 0) return yield();
  current_->wake_ns = services_.time.now_ns() + ns;
  block(Blocked::nap);
}

uint64_t Executor::now_ns() {
  const Inside inside(*this);
  return services_.time.now_ns();
}

uint64_t Executor::cycles() {
  return now_ns() * 2;
}

void* Executor::shared_tail() {
  return current_->block->shared.get() + current_->block->tail_offset;
}

void Executor::judge(const void* at, uint32_t bytes, TouchKind kind) {
  Thread& me = *current_;
  const AccessGuard* const guard = me.block == nullptr ? nullptr : me.block->grid->guard;
  if (guard == nullptr || me.part == kNoPart) return;
  const std::exception_ptr error = guard->judge(me.part, at, bytes, kind);
  if (!error) return;
  // Not thrown: instrumented code cannot be unwound. The run ends, so the thread never resumes.
  failure_ = error;
  me.fiber->yield();
}

void Executor::plain_access(const void* address, uint32_t bytes, bool write, CodeAddress where) {
  if (!in_kernel_ || !current_ || current_->fiber->on_stack(address)) return;
  const Inside inside(*this);
  judge(address, bytes, write ? TouchKind::write : TouchKind::read);
  services_.memory.plain_access(current_->name, address, bytes, write, where);
}

}  // namespace tokenyard::simt
