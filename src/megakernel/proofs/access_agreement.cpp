#include "megakernel/proofs/access_agreement.hpp"
#include "fabric/world_access.hpp"

#include <fmt/format.h>

#include <optional>

#include "base/archive.hpp"
#include "fabric/arena.hpp"
#include "fabric/network/network.hpp"
#include "megakernel/network_tables.hpp"
#include "megakernel/proofs/declared_access.hpp"
#include "megakernel/proofs/triggers.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {

namespace {

constexpr ArchiveKind kFindingsArchive{.name = "a rank's findings about its graph",
                                       .mark = 0x31646e6966675974};  // tYgfind1
constexpr uint64_t kUnknown = UINT64_MAX;

}  // namespace

/// Findings of one rank.
struct GraphFindings {
  bool fails = false;
  GraphFault fault = GraphFault::undeclared_access;
  std::vector<std::string> witness = {};
  std::string fix = {};
  std::vector<uint64_t> places = {};  ///< [tensors][ranks] offset in the rank's arena, or kUnknown
};

void visit(auto& archive, MaybeConst<GraphFindings> auto& findings) {
  archive(findings.fails, findings.fault, findings.witness, findings.fix, findings.places);
}

namespace {

/// Checks that units of tasks fit the rings with which the kernel is launched.
void check_units(const Graph& graph, const Shape& shape) {
  for (uint32_t task = 0; task < graph.tasks().size(); ++task) {
    const uint32_t unit_bytes = graph.touches_of(task).largest_unit();
    if (unit_bytes <= shape.streams.unit_bytes) continue;
    throw InvalidGraph(
        GraphFault::shared_memory,
        {task_name(graph, task), fmt::format("streams units of {} bytes", unit_bytes),
         fmt::format("rings hold units of {} bytes", shape.streams.unit_bytes)},
        "unit_bytes of the megakernel equal to those of its tasks");
  }
}

std::vector<uint64_t> places_of(World& world, const Graph& graph) {
  std::vector<uint64_t> places;
  const Arena& arena = arena_of(world);
  for (const TensorOptions& tensor : graph.tensors())
    for (uint32_t rank = 0; rank < world.size(); ++rank) {
      const bool everywhere = tensor.places.size() == world.size();
      const auto* const base = arena.base_of(rank);
      const auto* const at = everywhere ? tensor.places[rank].as<std::byte>() : nullptr;
      const bool inside =
          everywhere && base != nullptr && at >= base && at < base + arena.capacity();
      places.push_back(inside ? static_cast<uint64_t>(at - base) : kUnknown);
      if (at == nullptr || base != nullptr) continue;
      // Where the target lies in the rank's arena, its owner says the same.
      const auto mirror = network_of(world)->mirrors().from(at);
      if (mirror && mirror->target.key == network_of(world)->arena_key(rank))
        places.back() = mirror->target.offset;
    }
  return places;
}

/// Checks that all regions of far ranks that tasks write have a mirror.
void check_mirrors(World& world, const Graph& graph, const FarRanks& far) {
  for (const Graph::TaskNode& task : graph.tasks())
    for (const Region& region : task.writes)
      if (far.between(world.rank(), region.rank) && region.begin < region.end)
        (void)puts_of(world, graph, region);
}

GraphFindings findings_of(World& world, const Graph& graph, const Shape& shape,
                          const FarRanks& far) {
  GraphFindings findings{.places = places_of(world, graph)};
  try {
    check_units(graph, shape);
    check_mirrors(world, graph, far);
    DeclaredAccess(graph).check_arguments();
  } catch (const InvalidGraph& error) {
    findings.fails = true;
    findings.fault = error.fault;
    findings.witness = error.witness;
    findings.fix = error.fix;
  }
  return findings;
}

/// Checks that all ranks mean the same bytes by a shared tensor.
void check_places(const Graph& graph, std::span<const GraphFindings> all) {
  const uint32_t ranks = graph.place().ranks;
  for (uint32_t rank = 0; rank < ranks; ++rank)
    for (size_t i = 0; i < all[0].places.size(); ++i) {
      const uint64_t here = all[0].places[i], there = all[rank].places[i];
      if (here == kUnknown || there == kUnknown || here == there) continue;
      throw InvalidGraph(
          GraphFault::tables_differ,
          {fmt::format("tensor '{}' of rank {}", graph.tensors()[i / ranks].name, i % ranks),
           fmt::format("is at byte {} of that rank's arena on rank 0", here),
           fmt::format("and at byte {} on rank {}", there, rank)},
          "the same bytes of the same shared piece for a shared tensor on all ranks");
    }
}

}  // namespace

void agree_on_accesses(World& world, const Graph& graph, const Shape& shape, const FarRanks& far) {
  ArchiveWriter writer(kFindingsArchive);
  writer(findings_of(world, graph, shape, far));
  std::vector<GraphFindings> all;
  for (const auto& theirs : world.all_gather(writer.sealed(), "megakernel: accesses")) {
    ArchiveReader reader(kFindingsArchive, theirs, static_cast<uint32_t>(all.size()));
    reader(all.emplace_back());
    reader.end();
  }
  for (const GraphFindings& findings : all)
    if (findings.fails) throw InvalidGraph(findings.fault, findings.witness, findings.fix);
  check_places(graph, all);
}

}  // namespace tokenyard::megakernel
