#include "collectives/device/kernels/wait_phase.hpp"

#include <vector>

namespace tokenyard::device_collectives {

std::span<const std::string> phase_names() {
  static const std::vector<std::string> names = {"device collective: call",
                                                 "device collective: data",
                                                 "device collective: place",
                                                 "device collective: chunk",
                                                 "device collective: operation",
                                                 "device collective: size",
                                                 "device collective: tensors",
                                                 "device collective: done",
                                                 "device collective: message",
                                                 "device collective: counts",
                                                 "device collective: splits",
                                                 "device collective: capacity",
                                                 "device collective: post of a greeting",
                                                 "device collective: greeting of a rail peer",
                                                 "device collective: credits of a rail peer",
                                                 "device collective: sources of puts",
                                                 "device collective: post of a chunk",
                                                 "device collective: chunk of a rail peer"};
  return names;
}

}  // namespace tokenyard::device_collectives
