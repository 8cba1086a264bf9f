/// The witness: one more acceptor where the number of members is even, so that exactly half of them
/// can go on if it votes with them. It has no process: its state is one register in a store. A
/// member that asks it computes the answer here and writes the new register by compare-and-set; if
/// another member was faster, it reads the register and tries again.
///
/// Invariant: a reply is given only after the register behind it is in the store, so the register
/// behaves as the acceptor's stable memory, whichever member computes.
#pragma once

#include <optional>
#include <utility>

#include "membership/acceptor.hpp"
#include "membership/message.hpp"

namespace tokenyard::membership {

/// State of the newest epoch in which the witness was asked. Older epochs need none: each member of
/// an epoch has seen the previous one decided.
struct WitnessRegister {
  Epoch epoch = 0;
  Acceptor acceptor = {};
  bool operator==(const WitnessRegister&) const = default;
};

struct WitnessAnswer {
  WitnessRegister memory;  ///< must be written before the reply is used
  Message reply;
};

/// Answers a Prepare or an Accept; `memory` is empty if the register was never written. A question
/// from an epoch that is over is answered by FencedOff, which does not prove that the asker is out.
WitnessAnswer ask_witness(const std::optional<WitnessRegister>& memory, const Message& message,
                          Mutant mutant = Mutant::none);

}  // namespace tokenyard::membership
