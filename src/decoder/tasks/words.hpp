/// Self-validating words, for carried events (graph.hpp): the reader sees from the word itself
/// whether it has arrived, so no fence is needed, and no other data depends on it.
///
///     counted sum   56 bits of fixed point | 8 bits: number of terms added
///     flagged       value | epoch, of 64 bits or, with a BF16 value, of 32
///
/// One reduction adds a term and counts it. Integer addition commutes: a sum has the same bits for
/// any order of its terms, and on all ranks that get the same terms. Sums are cleared once per
/// iteration, by a task that a counted event separates from the next iteration's first term;
/// flagged words are never cleared.
#pragma once

#include <bit>

#include "device/functions.hpp"
#include "megakernel/kernels/context.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kSumTermsMax = 255;  ///< largest count of a sum
/// The unit of counted sums is 2^-24. Terms beyond the limit and NaN are reported.
inline constexpr float kSumUnits = 16777216.0f, kTermMax = 16777216.0f;

/// Returns the units of a term. Sets `broken`, which a set of carried words shares, if the value is
/// out of range or NaN.
TOKENYARD_DEVICE int64_t units_of_term(float value, uint32_t* broken) {
  const bool fits = value > -kTermMax && value < kTermMax;
  // Relaxed: read after an event that this task's successors signal.
  if (!fits) store<Order::relaxed, Scope::gpu>(broken, 1);
  return fits ? nearest_integer(value * kSumUnits) : 0;
}
/// Returns the units of a sum that becomes a term of another sum.
TOKENYARD_DEVICE int64_t units_carried(int64_t units, uint32_t* broken) {
  constexpr int64_t kUnitsMax = static_cast<int64_t>(kTermMax) * static_cast<int64_t>(kSumUnits);
  const bool fits = units > -kUnitsMax && units < kUnitsMax;
  // Relaxed: as above.
  if (!fits) store<Order::relaxed, Scope::gpu>(broken, 1);
  return fits ? units : 0;
}
/// Adds a term. `scope`: the same for all additions to the word; only then are they atomic.
template <Scope scope>
TOKENYARD_DEVICE void add_units(Peer<uint64_t> sum, int64_t units) {
  // Relaxed: the word carries all the information.
  add<Order::relaxed, scope>(sum, (static_cast<uint64_t>(units) << 8) + 1);
}
TOKENYARD_DEVICE uint32_t terms_of_sum(uint64_t sum) {
  return static_cast<uint32_t>(sum) & 0xff;
}
TOKENYARD_DEVICE int64_t units_of_sum(uint64_t sum) {
  return static_cast<int64_t>(sum) >> 8;
}
TOKENYARD_DEVICE float sum_value(uint64_t sum) {
  // Uses the units in place, which saves a shift.
  return static_cast<float>(static_cast<int64_t>(sum & ~uint64_t{0xff})) * (1 / kSumUnits / 256);
}

TOKENYARD_DEVICE void store_flagged(Stamped* to, float value, uint32_t epoch) {
  store<Order::relaxed, Scope::gpu>(to, Stamped{epoch, std::bit_cast<uint32_t>(value)});
}
TOKENYARD_DEVICE Stamped load_flagged(const Stamped* from) {
  return load<Order::relaxed, Scope::gpu>(from);
}

/// Stores a value with sixteen bits of epoch, which suffice: every word is written in every
/// iteration, so the previous epoch differs.
TOKENYARD_DEVICE void store_flagged_half(uint32_t* to, float value, uint32_t epoch) {
  const uint32_t bits = to_bfloat16(value).bits;
  store<Order::relaxed, Scope::gpu>(to, bits << 16 | (epoch & 0xffff));
}
TOKENYARD_DEVICE bool half_has_come(uint32_t word, uint32_t epoch) {
  return (word & 0xffff) == (epoch & 0xffff);
}
TOKENYARD_DEVICE float flagged_half_value(uint32_t word) {
  return std::bit_cast<float>(word & 0xffff0000u);
}

/// Returns the epoch of an iteration's flagged words; 0 is the initial content of memory.
TOKENYARD_DEVICE uint32_t epoch_of(const Context& context) {
  return static_cast<uint32_t>(context.iteration() + 1);
}

}  // namespace tokenyard::megakernel
