/// A graph for tests of runs: a loop of tasks that add to a number, on one rank.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "megakernel/devices.hpp"
#include "megakernel/step_task.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::megakernel {

inline TaskSet steps() {
  return task_set<StepTasks>(step_kernel.entry);
}

/// A number in one rank's memory, and a loop of tasks that each add to it.
struct Counter {
  explicit Counter(World& world) : memory(world) {
    value = memory.visible(sizeof(uint64_t)).as<uint64_t>();
    graph.loop_on(ended);
  }

  /// Adds a task after the previous one.
  void step(TaskOptions options, Step::Args args) {
    args.value = value;
    args.to = Peer<uint64_t>(value);
    options.reads = options.writes = {number.all()};
    if (last) options.waits.push_back({*last});
    last = graph.event({.name = "after " + options.name});
    options.signals.push_back({*last});
    graph.add<Step>(args, std::move(options));
  }
  /// Adds the last task, for which the loop waits.
  void close() {
    TaskOptions options{.name = "close", .reads = {number.all()}, .waits = {{*last}}};
    options.signals = {{ended}};
    graph.add<Step>({.value = value,
                     .to = Peer<uint64_t>(scrap()),
                     .add = 0,
                     .factor = nullptr,
                     .end_at = end_at,
                     .promised = {},
                     .promise = 0,
                     .kept = 0},
                    std::move(options));
  }
  uint64_t* scrap() { return memory.local(sizeof(uint64_t)).as<uint64_t>(); }
  uint64_t read() {
    uint64_t now = 0;
    memory.read({&now, {1}}, {value, {1}});
    return now;
  }

  TensorMemory memory;
  uint64_t* value;
  uint64_t end_at = 0;
  Graph graph{steps(), {.rank = 0, .ranks = 1}};
  Tensor number = graph.tensor({.name = "number", .bytes = 8, .given = Given::always});
  Event ended = graph.event({.name = "ended"});
  std::optional<Event> last;
};

inline Step::Args adds(uint64_t number) {
  return {.value = nullptr,
          .to = {},
          .add = number,
          .factor = nullptr,
          .end_at = 0,
          .promised = {},
          .promise = 0,
          .kept = 0};
}

}  // namespace tokenyard::megakernel
