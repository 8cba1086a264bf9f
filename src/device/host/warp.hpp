#pragma once

#include <bit>
#include <cstring>
#include <type_traits>

#include "device/host/here.hpp"
#include "device/host/machine.hpp"
#include "device/warp.hpp"

namespace tokenyard {

TOKENYARD_DEVICE uint32_t population(uint32_t bits) {
  return std::popcount(bits);
}
TOKENYARD_DEVICE uint32_t first_bit(uint32_t bits) {
  return std::countr_zero(bits);
}
TOKENYARD_DEVICE uint32_t lanes_below() {
  return (1u << warp::lane()) - 1;
}

namespace host_body {

template <class T>
TOKENYARD_DEVICE uint64_t pack(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T>
TOKENYARD_DEVICE T unpack(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

/// Returns the values of all lanes, by lane; those of lanes outside `lanes` are meaningless.
TOKENYARD_DEVICE const uint64_t* meet(WarpWord word, uint64_t value, uint32_t lanes) {
  WarpMeeting meeting{.word = word, .lanes = lanes, .value = value, .where = here()};
  machine().meet(meeting);
  return meeting.values;
}

template <class T, class Fold>
TOKENYARD_DEVICE T fold(WarpWord word, T value, uint32_t lanes, Fold fold) {
  const uint64_t* values = meet(word, pack(value), lanes);
  T result = value;
  bool first = true;
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    const T other = unpack<T>(values[lane]);
    result = first ? other : fold(result, other);
    first = false;
  }
  return result;
}

}  // namespace host_body

namespace warp {

using host_body::WarpWord;

TOKENYARD_DEVICE void sync(uint32_t lanes) {
  host_body::meet(WarpWord::sync, 0, lanes);
}

template <class T>
TOKENYARD_DEVICE T shuffle(T value, uint32_t source_lane, uint32_t lanes) {
  const uint64_t* values = host_body::meet(WarpWord::shuffle, host_body::pack(value), lanes);
  return host_body::unpack<T>(values[source_lane % kWarpLanes]);
}
template <class T>
TOKENYARD_DEVICE T shuffle_xor(T value, uint32_t lane_mask, uint32_t lanes) {
  return shuffle(value, lane() ^ lane_mask, lanes);
}
template <class T>
TOKENYARD_DEVICE T shuffle_up(T value, uint32_t delta, uint32_t lanes) {
  return shuffle(value, lane() >= delta ? lane() - delta : lane(), lanes);
}
template <class T>
TOKENYARD_DEVICE T shuffle_down(T value, uint32_t delta, uint32_t lanes) {
  return shuffle(value, lane() + delta < kWarpLanes ? lane() + delta : lane(), lanes);
}

TOKENYARD_DEVICE uint32_t ballot(bool predicate, uint32_t lanes) {
  const uint64_t* values = host_body::meet(WarpWord::ballot, predicate, lanes);
  uint32_t votes = 0;
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane)
    if (lanes >> lane & 1) votes |= static_cast<uint32_t>(values[lane]) << lane;
  return votes;
}
TOKENYARD_DEVICE bool any(bool predicate, uint32_t lanes) {
  return ballot(predicate, lanes) != 0;
}
TOKENYARD_DEVICE bool all(bool predicate, uint32_t lanes) {
  return ballot(predicate, lanes) == lanes;
}
TOKENYARD_DEVICE uint32_t match(uint32_t value, uint32_t lanes) {
  const uint64_t* values = host_body::meet(WarpWord::match, value, lanes);
  uint32_t same = 0;
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane)
    if ((lanes >> lane & 1) && values[lane] == value) same |= 1u << lane;
  return same;
}

template <class T>
TOKENYARD_DEVICE T sum(T value, uint32_t lanes) {
  static_assert(std::is_same_v<T, uint32_t> || std::is_same_v<T, int32_t>);
  return host_body::fold(WarpWord::sum, value, lanes, [](T a, T b) {
    return static_cast<T>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  });
}
template <class T>
TOKENYARD_DEVICE T min(T value, uint32_t lanes) {
  static_assert(std::is_same_v<T, uint32_t> || std::is_same_v<T, int32_t>);
  return host_body::fold(WarpWord::min, value, lanes, [](T a, T b) { return b < a ? b : a; });
}
template <class T>
TOKENYARD_DEVICE T max(T value, uint32_t lanes) {
  static_assert(std::is_same_v<T, uint32_t> || std::is_same_v<T, int32_t>);
  return host_body::fold(WarpWord::max, value, lanes, [](T a, T b) { return a < b ? b : a; });
}
TOKENYARD_DEVICE uint32_t bit_or(uint32_t value, uint32_t lanes) {
  return host_body::fold(WarpWord::bit_or, value, lanes,
                         [](uint32_t a, uint32_t b) { return a | b; });
}
TOKENYARD_DEVICE uint32_t exclusive_sum(uint32_t value) {
  const uint64_t* values = host_body::meet(WarpWord::sum, value, kAllLanes);
  uint32_t sum = 0;
  for (uint32_t lower = 0; lower < lane(); ++lower) sum += static_cast<uint32_t>(values[lower]);
  return sum;
}

TOKENYARD_DEVICE bool elect() {
  return lane() == 0;
}
template <class Body>
TOKENYARD_DEVICE auto once(Body body) {
  using Result = decltype(body());
  sync();
  Result result{};
  if (elect()) result = body();
  return host_body::unpack<Result>(
      host_body::meet(WarpWord::once, host_body::pack(result), kAllLanes)[0]);
}

}  // namespace warp

}  // namespace tokenyard
