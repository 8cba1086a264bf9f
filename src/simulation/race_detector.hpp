/// Finds pairs of conflicting accesses that are not ordered.
///
/// Every access is compared with the records of its bytes. Two accesses race if one of them writes,
/// the later one's thread does not know the earlier one, and they are not both strong with scopes
/// that include each other. As in FastTrack (Flanagan and Freund, 2009), threads have clocks and an
/// access has one epoch. Scopes and the async proxy follow the PTX memory model.
#pragma once

#include <cstdint>
#include <vector>

#include "simulation/access_record.hpp"
#include "simulation/actor.hpp"
#include "simulation/region.hpp"

namespace tokenyard::simulation {

enum class RaceReason : uint8_t { unordered, scope, proxy };

struct Race {
  Access earlier, later;
  const void* address;
  uint32_t bytes;
  RaceReason reason;
};

class RaceSink {
 public:
  virtual ~RaceSink() = default;
  virtual void found(const Race& race) = 0;
};

class RaceDetector {
 public:
  RaceDetector(const std::vector<Actor>& actors, RaceSink& sink) : actors_(actors), sink_(sink) {}

  /// Checks and records an access to `bytes` at `at`, all in `region`. `me` is the accessing
  /// thread, or the one that issued the bulk copy.
  void access(Region& region, const void* at, uint32_t bytes, const Access& access,
              const ThreadState& me);

 private:
  void compare(const Records& records, uint16_t mask, const Access& access, const ThreadState& me,
               const std::byte* cell);
  void remember(Records& records, uint16_t mask, const Access& access, const ThreadState& me);
  void prune(Records& records, const ThreadState& me);
  bool harmless(const Records& records, uint16_t mask, const Access& access) const;
  bool ordered(const Access& earlier, const Access& later, const ThreadState& me) const;
  bool implies(const Record& later, const Record& earlier) const;
  void summarise(Records& records) const;
  void add_to_summary(Records& records, const Record& record) const;

  const std::vector<Actor>& actors_;
  RaceSink& sink_;
};

}  // namespace tokenyard::simulation
