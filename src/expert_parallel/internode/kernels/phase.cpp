#include "expert_parallel/internode/kernels/phase.hpp"

#include <array>

namespace tokenyard::internode {

std::span<const std::string> phase_names() {
  static const std::array<std::string, kPhases> names = {"send: counts",
                                                         "send: routes",
                                                         "coordinate sends: greeting",
                                                         "receive: greeting",
                                                         "receive: ready words",
                                                         "forward: counts known",
                                                         "move: load",
                                                         "send: stage",
                                                         "coordinate sends: written slots",
                                                         "coordinate sends: put",
                                                         "coordinate sends: credits",
                                                         "coordinate sends: flush",
                                                         "forward: slots",
                                                         "add: partial sums",
                                                         "coordinate forwards: read slots",
                                                         "coordinate forwards: credit",
                                                         "receive: finished",
                                                         "begin: a world of before",
                                                         "receive: rows of a source",
                                                         "receive: places of a host"};
  return names;
}

}  // namespace tokenyard::internode
