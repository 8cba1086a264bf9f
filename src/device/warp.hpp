/// Collective operations of a warp. All lanes in the mask `lanes` (by default all 32) execute the
/// word at the same place in the source with the same mask; otherwise the host raises an error that
/// names both lanes. Shuffles, votes and reductions move values and order no memory; `warp::sync`
/// orders memory among the lanes in its mask.
#pragma once

#include <cstdint>

#include "device/identity.hpp"

namespace tokenyard::warp {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

TOKENYARD_DEVICE void sync(uint32_t lanes = kAllLanes);

// T: trivially copyable, 4 or 8 bytes.
template <class T>
TOKENYARD_DEVICE T shuffle(T value, uint32_t source_lane, uint32_t lanes = kAllLanes);
template <class T>
TOKENYARD_DEVICE T shuffle_xor(T value, uint32_t lane_mask, uint32_t lanes = kAllLanes);
/// Returns the value of the lane `delta` below this one; lanes below `delta` keep their own.
template <class T>
TOKENYARD_DEVICE T shuffle_up(T value, uint32_t delta, uint32_t lanes = kAllLanes);
template <class T>
TOKENYARD_DEVICE T shuffle_down(T value, uint32_t delta, uint32_t lanes = kAllLanes);

TOKENYARD_DEVICE uint32_t ballot(bool predicate, uint32_t lanes = kAllLanes);
TOKENYARD_DEVICE bool any(bool predicate, uint32_t lanes = kAllLanes);
TOKENYARD_DEVICE bool all(bool predicate, uint32_t lanes = kAllLanes);
/// Returns the mask of lanes whose value equals this lane's.
TOKENYARD_DEVICE uint32_t match(uint32_t value, uint32_t lanes = kAllLanes);

// Integer reductions; every lane gets the result (T: int32_t or uint32_t).
template <class T>
TOKENYARD_DEVICE T sum(T value, uint32_t lanes = kAllLanes);
template <class T>
TOKENYARD_DEVICE T min(T value, uint32_t lanes = kAllLanes);
template <class T>
TOKENYARD_DEVICE T max(T value, uint32_t lanes = kAllLanes);
TOKENYARD_DEVICE uint32_t bit_or(uint32_t value, uint32_t lanes = kAllLanes);
/// Returns the sum of the values of all lower lanes.
TOKENYARD_DEVICE uint32_t exclusive_sum(uint32_t value);

/// Returns true in lane 0 only. The lane is fixed, so a later word can find a value that it holds.
TOKENYARD_DEVICE bool elect();
/// Runs `body` on lane 0 and returns its result (4 or 8 bytes) in every lane. Orders memory among
/// the lanes before and after, as `sync` does.
template <class Body>
TOKENYARD_DEVICE auto once(Body body);

}  // namespace tokenyard::warp

namespace tokenyard {
/// Return the number of set bits, and the index of the lowest set bit (32 if none).
TOKENYARD_DEVICE uint32_t population(uint32_t bits);
TOKENYARD_DEVICE uint32_t first_bit(uint32_t bits);
/// Returns the mask of the lanes below this one.
TOKENYARD_DEVICE uint32_t lanes_below();
}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/warp.hpp"
#else
#include "device/host/warp.hpp"
#endif
