/// A question to the witness, on its way through a store that offers no more than reading a value
/// and compare-and-set. `control` asks real stores, a simulator its own.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "membership/witness.hpp"

namespace tokenyard::membership {

/// Invariant: only a register that was found in the store gives a reply, never one that is about to
/// be written. So a reply holds however many members ask at once, and after an answer of the store
/// that was lost: the next one finds the register as it was written.
///
/// A read may return an older register than another member has seen. Either the question changes
/// that register, and the compare-and-set finds the newer one; or the question was answered before,
/// and a promise, vote or refusal once given stays valid.
class WitnessQuestion {
 public:
  using Bytes = std::vector<std::byte>;

  /// `question`: a Prepare or an Accept.
  explicit WitnessQuestion(Message question, Mutant mutant = Mutant::none)
      : question_(std::move(question)), mutant_(mutant) {}

  /// Takes what the store holds: as read, or as compare-and-set has returned it, which returns no
  /// bytes for a register that was never written. Returns the value to set in place of `expected`;
  /// nothing if the question is settled.
  std::optional<Bytes> next(std::optional<Bytes> held);
  const std::optional<Bytes>& expected() const { return expected_; }
  /// Returns the reply once the question is settled; nothing if the store holds something else than
  /// a witness's register.
  const std::optional<Message>& reply() const { return reply_; }

 private:
  const Message question_;
  const Mutant mutant_;
  bool tried_ = false;
  std::optional<Bytes> expected_;
  std::optional<Message> reply_;
};

}  // namespace tokenyard::membership
