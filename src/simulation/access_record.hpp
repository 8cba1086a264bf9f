/// The race detector's records of the accesses to sixteen bytes of memory.
///
/// A record has the accessing actor (actor.hpp), its epoch at the time (clock.hpp), the kind, order
/// and scope of the access, and the bytes. From these the race detector decides whether a later
/// access is ordered after it (race_detector.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "device/memory.hpp"
#include "simt/memory.hpp"
#include "simulation/clock.hpp"

namespace tokenyard::simulation {

using simt::CodeAddress;

/// The kinds of access that the race detector distinguishes. `plain` is a C++ load or store in
/// kernel code, `weak` a weak access by a word of the vocabulary, and `bulk` an access by a bulk
/// copy, in the async proxy.
enum class AccessKind : uint8_t {
  plain_read,
  plain_write,
  weak_read,
  weak_write,
  strong_read,
  strong_write,
  bulk_read,
  bulk_write,
};
inline bool writes(AccessKind kind) {
  return (static_cast<uint8_t>(kind) & 1) != 0;
}
inline bool strong(AccessKind kind) {
  return kind == AccessKind::strong_read || kind == AccessKind::strong_write;
}
inline bool bulk(AccessKind kind) {
  return kind == AccessKind::bulk_read || kind == AccessKind::bulk_write;
}

struct Access {
  uint32_t actor;
  Epoch epoch;
  AccessKind kind;
  Order order = Order::weak;
  Scope scope = Scope::sys;
  CodeAddress where;
};

struct Record {
  Access access;
  uint16_t mask;  ///< bits of the accessed bytes among the cell's 16
};

/// The records of one cell, with a summary for the common case that many threads poll one word: it
/// passes without a comparison with each record.
struct Records {
  std::vector<Record> list;
  uint32_t prune_at = 8;  ///< length of the list at which implied records are dropped
  // Summary of all records in the list:
  bool weak = false;            ///< at least one is not strong
  bool devices_differ = false;  ///< they come from several devices
  Scope narrowest = Scope::sys;
  uint16_t mask = 0;  ///< the first record's; 0 without records
  bool masks_differ = false;
  uint32_t device = 0;  ///< the first record's
};

}  // namespace tokenyard::simulation
