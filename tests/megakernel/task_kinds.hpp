/// Task types for tests that only compile graphs.
#pragma once

#include <array>

#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {

struct Nothing {
  static constexpr const char* kName = "nothing";
  struct Args {
    uint32_t number;
  };
};
struct Greedy {
  static constexpr const char* kName = "greedy";
  struct Args {
    uint32_t number;
  };
};

inline const TaskSet& kinds() {
  static constexpr std::array<TaskType, 2> types = {TaskType{.name = Nothing::kName,
                                                             .args_bytes = sizeof(Nothing::Args),
                                                             .scratch_bytes = 0,
                                                             .streams = false,
                                                             .loads_ahead = false,
                                                             .fields = {}},
                                                    TaskType{.name = Greedy::kName,
                                                             .args_bytes = sizeof(Greedy::Args),
                                                             .scratch_bytes = 1 << 20,
                                                             .streams = false,
                                                             .loads_ahead = false,
                                                             .fields = {}}};
  static const TaskSet set{.kernel = nullptr, .types = types};
  return set;
}

}  // namespace tokenyard::megakernel
