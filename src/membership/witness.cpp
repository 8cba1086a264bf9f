#include "membership/witness.hpp"

#include "membership/invariant.hpp"

namespace tokenyard::membership {
namespace {

Message promise_of(const WitnessRegister& memory) {
  Promise promise;
  promise.ballot = memory.acceptor.promised;
  promise.accepted_in = memory.acceptor.accepted_in;
  promise.accepted = memory.acceptor.accepted;
  return {memory.epoch, std::move(promise)};
}

}  // namespace

WitnessAnswer ask_witness(const std::optional<WitnessRegister>& memory, const Message& message,
                          Mutant mutant) {
  const auto* prepare = std::get_if<Prepare>(&message.body);
  const auto* accept = std::get_if<Accept>(&message.body);
  invariant((prepare == nullptr) != (accept == nullptr),
            "the witness answers only Prepare and Accept");

  WitnessRegister known = memory.value_or(WitnessRegister{});
  if (known.epoch > message.epoch) return {known, {message.epoch, FencedOff{known.epoch}}};
  if (known.epoch < message.epoch || mutant == Mutant::witness_forgets)
    known = WitnessRegister{.epoch = message.epoch};
  if (prepare != nullptr) {
    if (known.acceptor.prepare(prepare->ballot)) return {known, promise_of(known)};
    return {known, {known.epoch, Refused{prepare->ballot, known.acceptor.promised}}};
  }
  if (known.acceptor.accept(accept->ballot, accept->verdict, mutant))
    return {known, {known.epoch, Accepted{accept->ballot}}};
  return {known, {known.epoch, Refused{accept->ballot, known.acceptor.promised}}};
}

}  // namespace tokenyard::membership
