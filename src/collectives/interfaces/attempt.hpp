/// One run of an operation in one epoch: the ranks it involves, and the record that undoes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/interfaces/frame_protocol.hpp"
#include "collectives/interfaces/undo.hpp"

namespace tokenyard::collectives {

/// An ordered set of ranks (of the group) that run a step together. A rank's index is its place.
struct Team {
  std::vector<uint32_t> ranks;
  uint32_t me = 0;  ///< this rank's place

  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }
  /// Returns the rank `places` further on, wrapping around; `before` goes backwards.
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
  Team team;  ///< all active ranks; ranks of one host are adjacent
  /// Index of each rank's host.
  std::vector<uint32_t> host_of;  ///< [ranks of the group]
  size_t chunk_bytes;             ///< size of the pieces in which large arrays move, roughly
  bool large = false;             ///< the results exceed the caches anyway
};

/// Part `index` when `elements` are divided into `parts`; sizes differ by at most one.
struct Part {
  size_t begin = 0, elements = 0;
};
inline Part part_of(size_t elements, uint32_t parts, uint32_t index) {
  const size_t each = elements / parts, more = elements % parts;
  return {each * index + (index < more ? index : more), each + (index < more ? 1 : 0)};
}
/// Piece `index` of a part cut into pieces of `piece` elements; empty past its end.
inline Part piece_of(Part part, size_t piece, size_t index) {
  const size_t begin = index * piece < part.elements ? index * piece : part.elements;
  const size_t left = part.elements - begin;
  return {part.begin + begin, left < piece ? left : piece};
}

}  // namespace tokenyard::collectives
