/// One run of an operation in one epoch: whom it talks to, and what takes its effects back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/interfaces/frame_protocol.hpp"
#include "collectives/interfaces/undo.hpp"

namespace tokenyard::collectives {

/// Ranks (of the group) that do something together, each at a place of its own.
struct Team {
  std::vector<uint32_t> ranks;
  uint32_t me = 0;  ///< place of this rank

  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }
  /// The rank so many places further, around the end.
  uint32_t after(uint32_t places) const { return ranks[(me + places) % size()]; }
  uint32_t before(uint32_t places) const { return ranks[(me + size() - places % size()) % size()]; }
  uint32_t place_of(uint32_t rank) const {
    for (uint32_t place = 0; place < size(); ++place) {
      if (ranks[place] == rank) return place;
    }
    return size();
  }
};

struct Attempt {
  FrameProtocol& talk;
  Undo& undo;
  Team team;  ///< all active ranks, those of a host next to one another
  /// Ranks of one host share a number.
  std::vector<uint32_t> host_of;  ///< [ranks of the group]
  size_t chunk_bytes;             ///< large arrays move in pieces of about this size
  bool large = false;             ///< its results do not stay in the caches anyway
};

/// Part `index` of `parts` of `elements`, as even as can be.
struct Part {
  size_t begin = 0, elements = 0;
};
inline Part part_of(size_t elements, uint32_t parts, uint32_t index) {
  const size_t each = elements / parts, more = elements % parts;
  return {each * index + (index < more ? index : more), each + (index < more ? 1 : 0)};
}
/// Piece `index` of a part that is cut into pieces of `piece` elements; empty beyond its end.
inline Part piece_of(Part part, size_t piece, size_t index) {
  const size_t begin = index * piece < part.elements ? index * piece : part.elements;
  const size_t left = part.elements - begin;
  return {part.begin + begin, left < piece ? left : piece};
}

}  // namespace tokenyard::collectives
