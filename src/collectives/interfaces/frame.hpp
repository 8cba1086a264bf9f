/// The content of a channel: headers, each followed by its payload, padded so that headers and
/// payloads are aligned in ring memory. Both ends are machines of the same kind.
#pragma once

#include <cstdint>
#include <type_traits>

#include "collectives/interfaces/signature.hpp"
#include "collectives/interfaces/words.hpp"

namespace tokenyard::collectives {

enum class FrameKind : uint8_t {
  data,     ///< a step of an operation
  here,     ///< "I have begun this operation", if it takes long
  refusal,  ///< "two ranks have made different calls"; payload: Refusal
  broken,   ///< "this operation has failed here"; payload: Breakage
  // Point-to-point messages; see engine/point_to_point.hpp.
  eager,
  offer,
  accept,
  content,
  received,
  unfit,
  withdrawn,
};

struct FrameHeader {
  static constexpr uint16_t magic_value = 0x7459;
  uint16_t magic = magic_value;
  FrameKind kind = FrameKind::data;
  uint8_t reserved = 0;
  uint32_t step = 0;  ///< number within the operation; both ends count alike
  Sequence sequence = 0;
  uint64_t bytes = 0;  ///< of the payload, without padding
  Signature signature;
};
static_assert(sizeof(FrameHeader) == 48);
static_assert(std::has_unique_object_representations_v<FrameHeader>);

constexpr uint64_t padding_of(uint64_t bytes) {
  return (16 - bytes % 16) % 16;
}

/// Two ranks (of the group) and the call each has made, or the number of bytes it sent or expected.
struct Refusal {
  uint32_t one = 0, other = 0;
  Signature one_called, other_called;
  uint64_t one_bytes = 0, other_bytes = 0;  ///< if the calls are alike
};
static_assert(std::has_unique_object_representations_v<Refusal>);

}  // namespace tokenyard::collectives
