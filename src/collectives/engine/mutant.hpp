/// Deliberate bugs of the engine, which its tests must notice. Only tests can select one.
#pragma once

#include <cstdint>

namespace tokenyard::collectives {

enum class EngineMutant : uint8_t {
  none,
  round_skipped,           ///< commits as soon as its own data are complete
  commits_while_frozen,    ///< goes on after it has reported its progress
  undo_forgotten,          ///< inputs stay as an aborted attempt left them
  verdict_not_followed,    ///< undoes an operation that a lost rank may have committed
  successors_not_awaited,  ///< runs again without waiting for the lost ranks' successors
  fence_ignored,           ///< goes on after the others have evicted it
  recovering_ignored,      ///< groups stay broken in a recovering epoch
  forgotten_when_closed,   ///< forgets a closed group before the others know how its operations
                           ///< ended
  foundings_not_counted,   ///< a group is taken for an earlier one of its name
};

}  // namespace tokenyard::collectives
