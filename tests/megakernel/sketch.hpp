/// Small graphs that compile() must accept or reject.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "megakernel/compile.hpp"
#include "megakernel/task_kinds.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {

inline const Shape kTwoWorkers{.workers = 2, .compute_warps = 1};

inline Compiled compile_all(const std::vector<Graph>& graphs,
                            std::optional<Placement> placement = std::nullopt,
                            const Shape& shape = kTwoWorkers) {
  const std::vector<Shape> shapes(graphs.size(), shape);
  return compile(graphs, shapes, std::move(placement));
}

inline InvalidGraph refused(const std::vector<Graph>& graphs,
                            std::optional<Placement> placement = std::nullopt,
                            const Shape& shape = kTwoWorkers) {
  try {
    compile_all(graphs, std::move(placement), shape);
  } catch (const InvalidGraph& error) {
    return error;
  }
  throw std::logic_error("the graph was accepted");
}

/// One rank's graph with a tensor and two events, to which tests add tasks.
struct Sketch {
  Graph graph{kinds(), {.rank = 0, .ranks = 1}};
  Tensor x = graph.tensor({.name = "x", .bytes = 64});
  Event a = graph.event({.name = "a"});
  Event b = graph.event({.name = "b"});

  Task add(TaskOptions options) { return graph.add<Nothing>({}, std::move(options)); }
};

}  // namespace tokenyard::megakernel
