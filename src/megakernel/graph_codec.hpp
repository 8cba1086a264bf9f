/// A graph as bytes: ranks exchange their graphs, so that each can check all of them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tokenyard/megakernel/graph.hpp"

namespace tokenyard::megakernel {

class GraphCodec {
 public:
  static std::vector<std::byte> encode(const Graph& graph);
  /// `set`: this rank's task set, whose types those of `from`, the sending rank, must equal. Throws
  /// InvalidGraph (tables_differ) if they differ, InternalError if the bytes are no graph or were
  /// damaged; both name `from`. Numbers in the result are in range, as `Graph::add` checks them.
  static Graph decode(std::span<const std::byte> bytes, const TaskSet& set, uint32_t from);

 private:
  template <class Archive, class GraphType>
  static void visit(Archive& archive, GraphType& graph);
};

}  // namespace tokenyard::megakernel
