/// Deliberate bugs of the engine, to prove that its tests would notice. Nothing but tests can ask
/// for one.
#pragma once

#include <cstdint>

namespace tokenyard::collectives {

enum class EngineMutant : uint8_t {
  none,
  round_skipped,           ///< commits as soon as its own data are complete
  commits_while_frozen,    ///< goes on after it has said how far it is
  undo_forgotten,          ///< inputs stay as an aborted attempt has left them
  verdict_not_followed,    ///< takes back what a rank that is gone may have committed
  successors_not_awaited,  ///< runs again without those whose places are to be taken
  fence_ignored,           ///< goes on when the others have put it out
  recovering_ignored,      ///< groups stay broken after an epoch that mends
  forgotten_when_closed,   ///< gives a group back without asking whether the others know how it
                           ///< ended
  foundings_not_counted,   ///< a group of a name is taken for the one before it
};

}  // namespace tokenyard::collectives
