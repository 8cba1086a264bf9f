/// The words that access memory: each is one call of the Memory, before which others may run.
#include <fmt/format.h>

#include "simt/executor.hpp"
#include "simt/inside.hpp"
#include "simt/misuse.hpp"
#include "simt/source_line.hpp"

namespace tokenyard::simt {

void Executor::misaligned(const void* at, uint32_t bytes, CodeAddress where) {
  throw KernelMisuse(
      fmt::format("an access of {} bytes to {} at {} is not aligned: a GPU needs a multiple of {}",
                  bytes, at, source_line(where), bytes));
}

void Executor::require_aligned(const void* at, uint32_t bytes, CodeAddress where) {
  if (reinterpret_cast<uintptr_t>(at) % bytes != 0) [[unlikely]]
    misaligned(at, bytes, where);
}

void Executor::load(const void* from, void* value, uint32_t bytes, Order order, Scope scope,
                    CodeAddress where) {
  const Inside inside(*this);
  require_aligned(from, bytes, where);
  judge(from, bytes, TouchKind::read);
  maybe_preempt();
  services_.memory.load(current_->name, from, value, bytes, order, scope, where);
  if (watches_words_) current_->watched.saw(from, value, bytes);
}

void Executor::store(void* to, const void* value, uint32_t bytes, Order order, Scope scope,
                     CodeAddress where) {
  const Inside inside(*this);
  require_aligned(to, bytes, where);
  judge(to, bytes, TouchKind::write);
  maybe_preempt();
  services_.memory.store(current_->name, to, value, bytes, order, scope, where);
}

void Executor::modify(Modify what, void* at, const void* operand, void* old, uint32_t bytes,
                      Order order, Scope scope, CodeAddress where) {
  const Inside inside(*this);
  require_aligned(at, bytes, where);
  judge(at, bytes, TouchKind::modify);
  maybe_preempt();
  services_.memory.modify(current_->name, what, at, operand, old, bytes, order, scope, where);
  current_->watched.acted();
}

void Executor::compare_exchange(void* at, const void* expected, const void* desired, void* old,
                                uint32_t bytes, Order order, Scope scope, CodeAddress where) {
  const Inside inside(*this);
  require_aligned(at, bytes, where);
  judge(at, bytes, TouchKind::modify);
  maybe_preempt();
  services_.memory.compare_exchange(current_->name, at, expected, desired, old, bytes, order, scope,
                                    where);
  current_->watched.acted();
}

void Executor::fence(Fence kind, Scope scope, CodeAddress where) {
  const Inside inside(*this);
  maybe_preempt();
  services_.memory.fence(current_->name, kind, scope, where);
}

void Executor::completion_init(void* completion, uint32_t arrivals, CodeAddress where) {
  const Inside inside(*this);
  services_.memory.completion_init(current_->name, completion, arrivals, where);
}

void Executor::completion_arrive(void* completion, uint32_t expected_bytes, CodeAddress where) {
  const Inside inside(*this);
  maybe_preempt();
  services_.memory.completion_arrive(current_->name, completion, expected_bytes, where);
}

bool Executor::completion_done(void* completion, uint32_t parity, CodeAddress where) {
  const Inside inside(*this);
  maybe_preempt();
  const bool done = services_.memory.completion_done(current_->name, completion, parity, where);
  if (watches_words_) current_->watched.saw(completion, completion, sizeof(uint64_t));
  return done;
}

void Executor::fence_async(CodeAddress where) {
  const Inside inside(*this);
  services_.memory.fence_async(current_->name, where);
}

bool Executor::mutated(CodeAddress where) {
  const Inside inside(*this);
  return services_.memory.mutated(current_->name, where);
}

void Executor::bulk_load(void* to_shared, const void* from, uint32_t bytes, void* completion,
                         CodeAddress where) {
  const Inside inside(*this);
  judge(from, bytes, TouchKind::read);
  maybe_preempt();
  services_.memory.bulk_load(current_->name, to_shared, from, bytes, completion, where);
}

void Executor::bulk_store(void* to, const void* from_shared, uint32_t bytes, CodeAddress where) {
  const Inside inside(*this);
  judge(to, bytes, TouchKind::write);
  maybe_preempt();
  services_.memory.bulk_store(current_->name, to, from_shared, bytes, where);
}

void Executor::bulk_commit(CodeAddress where) {
  const Inside inside(*this);
  services_.memory.bulk_commit(current_->name, where);
}

void Executor::bulk_wait(uint32_t groups, bool sources_only, CodeAddress where) {
  const Inside inside(*this);
  maybe_preempt();
  current_->waiting = {.where = where};
  while (!services_.memory.bulk_wait(current_->name, groups, sources_only, where))
    block(Blocked::copies);
}

}  // namespace tokenyard::simt
