// The switch of a mutant. Each rewritten file includes this header; schemata.py writes switches,
// tree.py the table that they read.
#pragma once
#pragma GCC system_header  // No warning is about a mutant.

// A mutant may narrow a constant, which even a system's header may not.
#pragma GCC diagnostic ignored "-Wnarrowing"

extern "C" {
/// Says that a mutant's place was reached, and returns whether it is the mutant of this process.
__attribute__((visibility("hidden"), cold, no_sanitize("thread"))) bool mutants_hit(
    const unsigned char* state);
}

namespace tokenyard_mutants {

/// Returns whether the mutant is on. A state is 0 but for the mutant of this process, or for those
/// not reached yet while a run records what it reaches. The load is one that the compiler's
/// ThreadSanitizer pass does not see: the simulator must not take it for an access of a kernel.
[[gnu::always_inline]] inline bool on(const unsigned char* state) {
  unsigned value;
  asm("movzbl %1, %0" : "=r"(value) : "m"(*state));
  return __builtin_expect(value != 0, 0) && mutants_hit(state);
}

}  // namespace tokenyard_mutants

#define TOKENYARD_MUTANT(table, number) \
  (!__builtin_is_constant_evaluated() && ::tokenyard_mutants::on(table + number))
