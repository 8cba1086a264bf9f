#include "simulation/mutation.hpp"

namespace tokenyard::simulation {

const char* name(Fault fault) {
  switch (fault) {
    case Fault::release_made_relaxed:
      return "release made relaxed";
    case Fault::acquire_made_relaxed:
      return "acquire made relaxed";
    case Fault::sys_made_gpu:
      return "sys scope made gpu";
    case Fault::barrier_removed:
      return "block barrier removed";
    case Fault::store_dropped:
      return "store dropped";
    case Fault::proxy_fence_removed:
      return "proxy fence removed";
    case Fault::rule_broken:
      return "rule broken";
  }
  return "?";
}

}  // namespace tokenyard::simulation
