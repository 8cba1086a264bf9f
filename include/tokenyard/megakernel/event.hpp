/// Names an event of a graph, in host code and in the arguments of tasks.
#pragma once

#include <cstdint>

namespace tokenyard::megakernel {

struct Event {
  uint32_t id = 0;
};

}  // namespace tokenyard::megakernel
