/// Combine across hosts, in one launch. See across_hosts.hpp for the roles.
///
///     ranks of a host          rail peer of the source there       source
///     results       <-- load/store -- adds them in rank order,
///                                     rounds once
///                                     a partial ==== slots ====>   its ring
///                                               <=== credits ===   adds biases, its own host's
///                                                                  results and the partials in
///                                                                  host order, rounds once
///
/// Partials come in the order of the source's tokens, as their rows went. Sums are fp32. Each
/// result of another host is thus rounded once more than inside a host, with the sum of its host,
/// unless partials travel as fp32. Weights, which are summed likewise, are not rounded.
#pragma once

#include "device/bulk.hpp"
#include "device/kernel.hpp"
#include "device/peer.hpp"
#include "expert_parallel/internode/kernels/rail_shared.hpp"
#include "expert_parallel/throughput/kernels/combine.hpp"

namespace tokenyard::internode {

struct CombineParams {
  /// As inside a host, but for preparation, order, groups and stages, which are not used: all rows
  /// can be read from the start.
  throughput::CombineParams combine;
  Rails rails;
  RailRoute route;
  bool wide;  ///< partials are fp32, although rows are narrower
  uint32_t movers;
  uint32_t part_bytes;  ///< of a row that a warp adds at once, at most kPartBytesMax
  uint32_t parts;       ///< in shared memory, per mover: loads that are under way at once
};

/// Warps of a block that add: with the others 16, so that each thread has 128 registers.
inline constexpr uint32_t kAddersMax = 13;
inline constexpr uint32_t kCombineThreadsMax = (kFirstMover + kAddersMax) * kWarpLanes;
/// A part of a row that a warp adds at once: pieces of 16 bytes per lane.
inline constexpr uint32_t kPiecesOfPart = 4;
inline constexpr uint32_t kPartBytesMax = kPiecesOfPart * kWarpLanes * uint32_t{sizeof(Bytes16)};
/// Loads of one warp at once, a lane each.
inline constexpr uint32_t kPartsMax = 13;

/// A row that a sum adds.
struct Addend {
  Peer<const std::byte> row;
  bool is_partial;  ///< a partial sum, which may be wider than rows
};

/// The block's shared memory behind RailShared.
struct CombineTail {
  uint32_t ranks, movers;
  uint32_t part_bytes;
  uint32_t place_bytes;  ///< of a part in this memory, with room for a part of a partial
  uint32_t parts;
  uint32_t addends_max;  ///< of a sum: biases, hosts and ranks of this host
  std::byte* base = nullptr;

  TOKENYARD_HOST_DEVICE static CombineTail of(const CombineParams& params) {
    return {.ranks = params.combine.call.ranks,
            .movers = params.movers,
            .part_bytes = params.part_bytes,
            .place_bytes = params.wide ? 2 * params.part_bytes : params.part_bytes,
            .parts = params.parts,
            .addends_max = 2 + params.rails.hosts.hosts + params.rails.hosts.locals};
  }
  TOKENYARD_HOST_DEVICE std::byte* part(uint32_t mover, uint32_t place) const {
    return base + size_t{mover * parts + place} * place_bytes;
  }
  /// [parts]
  TOKENYARD_HOST_DEVICE Completion* full(uint32_t mover) const {
    return reinterpret_cast<Completion*>(part(movers, 0)) + mover * parts;
  }
  /// [addends_max]
  TOKENYARD_HOST_DEVICE Addend* addends(uint32_t mover) const {
    return reinterpret_cast<Addend*>(full(movers)) + size_t{mover} * addends_max;
  }
  TOKENYARD_HOST_DEVICE throughput::ReadyWords ready_words() const {
    return {reinterpret_cast<uint32_t*>(addends(movers)), ranks};
  }
  /// [kSourceWords]: of one source, on their way.
  TOKENYARD_HOST_DEVICE uint32_t* greeting() const {
    return reinterpret_cast<uint32_t*>(addends(movers)) + throughput::kReadyWords * ranks;
  }
  TOKENYARD_HOST_DEVICE uint32_t bytes() const {
    return movers * (parts * (place_bytes + uint32_t{sizeof(Completion)}) +
                     addends_max * uint32_t{sizeof(Addend)}) +
           (throughput::kReadyWords * ranks + kSourceWords) * uint32_t{sizeof(uint32_t)};
  }
};

TOKENYARD_DECLARE_KERNEL(combine_kernel, CombineParams);

}  // namespace tokenyard::internode
