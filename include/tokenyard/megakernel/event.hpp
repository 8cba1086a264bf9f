/// An event of a graph, as host code and tasks name it.
#pragma once

#include <cstdint>

namespace tokenyard::megakernel {

struct Event {
  uint32_t id = 0;
};

}  // namespace tokenyard::megakernel
