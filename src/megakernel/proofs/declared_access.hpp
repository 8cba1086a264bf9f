/// Which memory each task of a graph may touch, by the regions that it declares: what compile()
/// compares arguments with, and a checked run each access.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {

/// Of one rank, whose addresses it knows. Memory that the graph knows nothing of is not judged:
/// neither tensors without places nor what lies in no piece.
class DeclaredAccess {
 public:
  explicit DeclaredAccess(const Graph& graph);

  /// Bytes [begin, end) that a task may not touch.
  struct Fault {
    uint64_t begin, end;
    std::string where;  ///< "bytes [4, 16) of tensor 'x' of rank 0"
  };
  /// Returns the first bytes of [begin, end) that the task may not touch so.
  std::optional<Fault> fault(uint32_t task, uint64_t begin, uint64_t end, AccessKind access) const;

  /// Throws InvalidGraph (undeclared_access) where the arguments of a task, as its type states,
  /// touch what its regions do not declare.
  void check_arguments() const;

 private:
  struct Range {
    uint64_t begin, end;
  };
  struct OfTask {
    std::vector<Range> reads, writes, adds, streams;  ///< by address, and none meet
  };

  void note(std::vector<Range>& ranges, const std::vector<Region>& regions) const;
  void check(uint32_t task, const TouchedRange& touch) const;
  std::string where(uint64_t begin, uint64_t end) const;

  const Graph& graph_;
  std::vector<OfTask> tasks_;
};

}  // namespace tokenyard::megakernel
