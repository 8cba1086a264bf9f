/// Deliberate bugs of the protocol, which its tests must notice. Only tests can select one.
#pragma once

#include <cstdint>

namespace tokenyard::membership {

enum class Mutant : uint8_t {
  none,
  quorum_off_by_one,        ///< exactly half is enough, without a witness
  ballot_not_compared,      ///< an old leader's proposal is accepted after a promise to a newer one
  accepted_forgotten,       ///< a promise omits what was accepted before
  adopted_value_ignored,    ///< a leader proposes its own verdict, whatever others have accepted
  decided_without_votes,    ///< promises count as votes
  committed_is_least,       ///< takes the smallest committed number of the promises
  unpromised_members_kept,  ///< members that have not frozen stay
  witness_not_asked,        ///< its vote is assumed
  witness_races_ignored,    ///< a compare-and-set that another member overtook counts as done
  witness_forgets,          ///< it starts afresh at every question
  epoch_not_checked,        ///< messages of an older epoch count in this one
  old_incarnation_accepted,  ///< a slot's former process passes for its replacement
  suspicions_not_told,       ///< members that do not hear one another stay together
  stalls_blamed_on_all,      ///< a rank that waits is blamed like one that is late
  admitted_unasked,          ///< a newcomer gets in without a request
  recovered_by_some,         ///< an epoch recovers as soon as one member asks
  leaders_never_replaced,    ///< a member that has promised waits for that leader forever
  quorum_is_enough,          ///< a leader does not wait for promises beyond a quorum
  goodbye_not_passed_on,     ///< a goodbye after a promise is forgotten
  wishes_never_late,         ///< a request for a slot that was filled meanwhile fills it again
  waiting_members_evicted,   ///< a member is evicted although it waited for the one that is lost
};

}  // namespace tokenyard::membership
