/// The witness: one more acceptor where the number of members is even, so that an exact half of
/// them can go on if it sides with them. It has no process of its own. All that it knows is one
/// register in a store; who asks it works out the answer here, and writes the new register by
/// compare-and-set; if somebody else was faster, again.
#pragma once

#include <optional>
#include <utility>

#include "membership/acceptor.hpp"
#include "membership/message.hpp"

namespace tokenyard::membership {

/// Of the newest epoch in which it was asked. Nothing is known of older ones, nor needed: who is in
/// an epoch has seen the one before decided.
struct WitnessRegister {
  Epoch epoch = 0;
  Acceptor acceptor = {};
  bool operator==(const WitnessRegister&) const = default;
};

struct WitnessAnswer {
  WitnessRegister memory;  ///< to be written before the reply is given
  Message reply;
};

/// The answer to a Prepare or an Accept; `memory` is nothing if the register was never written.
/// Asked in an epoch that is over it replies FencedOff, which is no proof that the asker is out.
WitnessAnswer ask_witness(const std::optional<WitnessRegister>& memory, const Message& message,
                          Mutant mutant = Mutant::none);

}  // namespace tokenyard::membership
