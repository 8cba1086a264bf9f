/// What watches a kernel's accesses on hosts and in the simulator.
#pragma once

#include <cstdint>
#include <exception>

namespace tokenyard {

enum class TouchKind : uint8_t { read, write, modify };

class AccessGuard {
 public:
  virtual ~AccessGuard() = default;
  /// Returns the error of an access that a thread working on `part` must not make, which then ends
  /// the run before it happens; null for all others.
  virtual std::exception_ptr judge(uint32_t part, const void* at, uint32_t bytes,
                                   TouchKind kind) const = 0;
};

}  // namespace tokenyard
