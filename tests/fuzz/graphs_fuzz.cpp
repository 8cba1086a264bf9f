// Graphs of two ranks, as one of them receives them: their decoding, then all proofs. Any
// graph is rejected with a fault, or compiles.
#include "fuzz/archives.hpp"
#include "megakernel/compile.hpp"
#include "megakernel/graph_codec.hpp"
#include "megakernel/task_kinds.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {
namespace {

constexpr uint32_t kRanks = 2;

void run(fuzz::Input input) {
  // Every graph begins with the names of its task types, which must be this rank's: the input says
  // what follows.
  static const std::vector<std::byte> empty = GraphCodec::encode(Graph(kinds(), {}));
  const std::span<const std::byte> whole(empty);
  uint64_t names;
  std::memcpy(&names, empty.data() + sizeof(ArchiveHeader), sizeof names);
  const auto front = whole.subspan(sizeof(ArchiveHeader), sizeof names + names);
  const bool is_dynamic = input.flag();
  std::vector<Graph> graphs;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    std::vector<std::byte> body(front.begin(), front.end());
    const auto rest = rank + 1 < kRanks ? input.bytes(input.number<uint16_t>()) : input.rest();
    body.insert(body.end(), rest.begin(), rest.end());
    const auto bytes = fuzz::archive_of(empty, body);
    graphs.push_back(GraphCodec::decode(bytes, kinds(), rank));
    fuzz::require_same_bytes(GraphCodec::encode(graphs.back()), bytes,
                             "a graph reads as it was written");
  }
  const std::vector<Shape> shapes(
      kRanks, Shape{.workers = 2, .compute_warps = 1, .schedulers = is_dynamic ? 1u : 0u});
  const Compiled compiled = compile(graphs, shapes);
  for (uint32_t rank = 0; rank < kRanks; ++rank)
    (void)make_program(graphs, rank, shapes[rank], compiled);
}

}  // namespace
}  // namespace tokenyard::megakernel

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    tokenyard::megakernel::run({data, size});
  } catch (const tokenyard::Error&) {
    // The graphs are rejected, with a fault.
  }
  return 0;
}
