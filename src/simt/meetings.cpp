/// Warp words and block barriers. A thread that arrives at one that does not match the one under
/// way causes an error that names both threads and their places in the source.
#include <fmt/core.h>

#include <algorithm>
#include <bit>

#include "simt/executor.hpp"
#include "simt/misuse.hpp"
#include "simt/source_line.hpp"

namespace tokenyard::simt {

namespace {

const char* name_of(host_body::WarpWord word) {
  using host_body::WarpWord;
  switch (word) {
    case WarpWord::sync:
      return "warp::sync";
    case WarpWord::shuffle:
      return "warp::shuffle";
    case WarpWord::ballot:
      return "warp::ballot";
    case WarpWord::match:
      return "warp::match";
    case WarpWord::sum:
      return "warp::sum";
    case WarpWord::min:
      return "warp::min";
    case WarpWord::max:
      return "warp::max";
    case WarpWord::bit_or:
      return "warp::bit_or";
    case WarpWord::once:
      return "warp::once";
    case WarpWord::multiply_add:
      return "warp::multiply_add";
    case WarpWord::load_transposed:
      return "warp::load_transposed";
  }
  return "?";
}

std::string at(const Thread& thread) {
  return fmt::format("{} at {}", describe(thread), source_line(thread.waiting.where));
}

/// Returns the largest number of arrivals that a barrier can still reach: those so far, and one per
/// thread that neither waits there nor has ended. (A thread may arrive without waiting, then end.)
uint32_t can_come(const Block& block, const BarrierState& barrier) {
  const size_t elsewhere = block.threads.size() - block.exited - barrier.waiting.size();
  return static_cast<uint32_t>(barrier.arrived.size() + elsewhere);
}

std::string barrier_name(uint32_t id) {
  return id == 0 ? "the block's barrier" : fmt::format("barrier {}", id);
}

}  // namespace

void Executor::meet(host_body::WarpMeeting& meeting) {
  Thread& me = *current_;
  in_kernel_ = false;
  Block& block = *me.block;
  const uint32_t warp = me.name.thread / 32, lane = me.name.thread % 32;
  me.waiting = {.where = meeting.where, .lanes = meeting.lanes};
  if (!(meeting.lanes >> lane & 1))
    throw KernelMisuse(fmt::format("{}: {} of lanes {:#010x}, which do not include the caller",
                                   at(me), name_of(meeting.word), meeting.lanes));
  if (const uint32_t gone = meeting.lanes & block.exited_lanes[warp]; gone != 0)
    throw KernelMisuse(fmt::format("{}: {} includes {}, which has ended", at(me),
                                   name_of(meeting.word),
                                   describe(*block.threads[warp * 32 + std::countr_zero(gone)])));

  auto& open = block.meetings[warp];
  OpenMeeting* mine = nullptr;
  for (OpenMeeting& other : open) {
    if (other.lanes == meeting.lanes && other.word == meeting.word &&
        same_place(other.first->waiting.where, meeting.where)) {
      mine = &other;
      continue;
    }
    if (!(other.lanes & meeting.lanes)) continue;  // Disjoint parts of a diverged warp.
    throw KernelMisuse(fmt::format(
        "{} arrived at {} of lanes {:#010x}, but {} at {} of lanes {:#010x}", at(me),
        name_of(meeting.word), meeting.lanes, at(*other.first), name_of(other.word), other.lanes));
  }
  if (!mine) mine = &open.emplace_back(OpenMeeting{.word = meeting.word, .lanes = meeting.lanes});
  if (!mine->first) mine->first = &me;
  mine->arrived |= 1u << lane;
  mine->values[lane] = meeting.value;
  if (mine->arrived == mine->lanes) {
    names_.clear();
    for (uint32_t other = 0; other < 32; ++other) {
      if (!(mine->lanes >> other & 1)) continue;
      Thread& met = *block.threads[warp * 32 + other];
      if (mine->word != host_body::WarpWord::sync) met.met = mine->values;
      names_.push_back(&met.name);
      if (&met != &me) make_runnable(met);
    }
    // Shuffles and votes move values and order no memory.
    if (mine->word == host_body::WarpWord::sync || mine->word == host_body::WarpWord::once)
      services_.memory.synchronise(names_, names_);
    // Lanes that poll together vote at every poll; a ballot without a vote is no progress.
    const bool idle_vote = mine->word == host_body::WarpWord::ballot &&
                           std::all_of(mine->values.begin(), mine->values.end(),
                                       [](uint64_t vote) { return vote == 0; });
    open.erase(open.begin() + (mine - open.data()));
    if (!idle_vote) ++events_;
  } else {
    wake_for_meeting(block, warp, mine->lanes & ~mine->arrived);
    this->block(Blocked::meeting);
  }
  meeting.values = me.met.data();
  in_kernel_ = true;
}

/// Wakes lanes that sleep in a wait, because a lane of their warp has arrived at a word with them.
void Executor::wake_for_meeting(Block& block, uint32_t warp, uint32_t lanes) {
  for (uint32_t lane = 0; lane < 32 && !watchers_.empty(); ++lane) {
    if (!(lanes >> lane & 1)) continue;
    Thread& other = *block.threads[warp * 32 + lane];
    if (other.blocked != Blocked::condition) continue;
    std::erase(watchers_, &other);
    make_runnable(other);
  }
}

void Executor::barrier(uint32_t id, uint32_t threads, bool wait, CodeAddress where) {
  in_kernel_ = false;
  arrive(id, threads, wait, false, false, where);
  in_kernel_ = true;
}

bool Executor::barrier_any(bool predicate, CodeAddress where) {
  in_kernel_ = false;
  Thread& me = *current_;
  arrive(0, me.identity.threads, true, true, predicate, where);
  in_kernel_ = true;
  return me.block->any_result[me.name.thread];
}

void Executor::arrive(uint32_t id, uint32_t threads, bool wait, bool votes, bool predicate,
                      CodeAddress where) {
  Thread& me = *current_;
  me.waiting = {.where = where, .barrier = id, .threads = threads};
  if (id >= kBarriers)
    throw KernelMisuse(fmt::format("{}: a block has barriers 0 to 15, not {}", at(me), id));
  if (threads == 0 || threads % 32 != 0 || threads > me.identity.threads)
    throw KernelMisuse(fmt::format(
        "{}: {} of {} threads: the number must be a multiple of 32, at most the block's {}", at(me),
        barrier_name(id), threads, me.identity.threads));
  if (services_.memory.skip_barrier(me.name, where)) {
    me.block->any_result[me.name.thread] = predicate;
    return;
  }
  BarrierState& barrier = me.block->barriers[id];
  if (!barrier.arrived.empty() && (barrier.threads != threads || barrier.votes != votes))
    throw KernelMisuse(fmt::format(
        "{} arrived at {} of {} threads{}, but {} at {} said {} threads{}", at(me),
        barrier_name(id), threads, votes ? " with a vote" : "", describe(*barrier.arrived.front()),
        source_line(barrier.where), barrier.threads, barrier.votes ? " with a vote" : ""));
  if (can_come(*me.block, barrier) < threads)
    throw KernelMisuse(fmt::format("{}: {} of {} threads can never complete: {} has ended", at(me),
                                   barrier_name(id), threads, describe(*me.block->first_exited)));
  if (barrier.arrived.empty()) barrier.where = where;
  barrier.threads = threads;
  barrier.votes = votes;
  barrier.any |= predicate;
  barrier.arrived.push_back(&me);
  if (wait) barrier.waiting.push_back(&me);
  if (barrier.arrived.size() == threads)
    complete(barrier);
  else if (wait)
    block(Blocked::barrier);
}

void Executor::complete(BarrierState& barrier) {
  names_.clear();
  waiting_names_.clear();
  for (const Thread* thread : barrier.arrived) names_.push_back(&thread->name);
  for (Thread* thread : barrier.waiting) {
    waiting_names_.push_back(&thread->name);
    thread->block->any_result[thread->name.thread] = barrier.any;
    if (thread != current_) make_runnable(*thread);
  }
  services_.memory.synchronise(names_, waiting_names_);
  barrier.reset();
  ++events_;
}

void Executor::check_exit(Thread& thread) {
  Block& block = *thread.block;
  const uint32_t warp = thread.name.thread / 32, lane = thread.name.thread % 32;
  for (const OpenMeeting& open : block.meetings[warp]) {
    if (open.lanes >> lane & 1)
      throw KernelMisuse(fmt::format("{} ended, but {} waits for it in {}", describe(thread),
                                     at(*open.first), name_of(open.word)));
  }
  for (uint32_t id = 0; id < kBarriers; ++id) {
    const BarrierState& barrier = block.barriers[id];
    if (barrier.waiting.empty()) continue;
    if (can_come(block, barrier) < barrier.threads)
      throw KernelMisuse(fmt::format("{} ended, but {} waits at {} for {} threads",
                                     describe(thread), at(*barrier.waiting.front()),
                                     barrier_name(id), barrier.threads));
  }
}

}  // namespace tokenyard::simt
