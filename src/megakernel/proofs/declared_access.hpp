/// The memory that each task of a graph may touch, by its declared regions. compile() compares
/// arguments with it, and a checked run compares every access.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {

/// Declared access of one rank, by that rank's addresses. Memory unknown to the graph is not
/// judged: tensors without places, and memory outside all pieces.
class DeclaredAccess {
 public:
  explicit DeclaredAccess(const Graph& graph);

  /// Bytes [begin, end) that a task may not touch.
  struct Fault {
    uint64_t begin, end;
    std::string where;  ///< "bytes [4, 16) of tensor 'x' of rank 0"
  };
  /// Returns the first bytes of [begin, end) on which the task may not do `access`.
  std::optional<Fault> fault(uint32_t task, uint64_t begin, uint64_t end, AccessKind access) const;

  /// Throws InvalidGraph (undeclared_access) if a task touches, through its arguments and by the
  /// statement of its type, memory that its regions do not declare.
  void check_arguments() const;

 private:
  struct Range {
    uint64_t begin, end;
  };
  struct OfTask {
    std::vector<Range> reads, writes, adds, streams;  ///< by address, disjoint
  };

  void note(std::vector<Range>& ranges, const std::vector<Region>& regions) const;
  void check(uint32_t task, const TouchedRange& touch) const;
  std::string where(uint64_t begin, uint64_t end) const;

  const Graph& graph_;
  std::vector<OfTask> tasks_;
};

}  // namespace tokenyard::megakernel
