/// Deliberate bugs of the protocol, to prove that its tests would notice. Nothing but tests can
/// ask for one.
#pragma once

#include <cstdint>

namespace tokenyard::membership {

enum class Mutant : uint8_t {
  none,
  quorum_off_by_one,         ///< an exact half is enough, without a witness
  ballot_not_compared,       ///< an old leader's proposal is accepted after a promise to a new one
  accepted_forgotten,        ///< a promise does not tell what was accepted before
  adopted_value_ignored,     ///< a leader proposes its own verdict whatever others have accepted
  decided_without_votes,     ///< promises are taken for votes
  committed_is_least,        ///< of the promises' numbers, the smallest
  unpromised_members_kept,   ///< members that have not frozen stay in
  witness_not_asked,         ///< its word is taken for granted
  witness_forgets,           ///< it starts afresh with every question
  epoch_not_checked,         ///< what is said in an old epoch counts in this one
  old_incarnation_accepted,  ///< a slot's former process passes for the one that replaced it
  suspicions_not_told,       ///< members that do not hear one another stay together
  stalls_blamed_on_all,      ///< who waits is blamed as well as who did not come
  admitted_unasked,          ///< a newcomer gets in without anybody's wish
  recovered_by_some,         ///< what has failed is forgotten as soon as one of them asks for it
  leaders_never_replaced,    ///< one who has promised waits for that leader for ever
  quorum_is_enough,          ///< a leader goes on without those that have not promised yet
  goodbye_not_passed_on,     ///< what it says is forgotten if it comes after a promise
  wishes_never_late,         ///< one for a slot that was filled meanwhile fills it once more
};

}  // namespace tokenyard::membership
