/// Checks a kernel's memory accesses, on hosts and in the simulator.
#pragma once

#include <cstdint>
#include <exception>

namespace tokenyard {

enum class TouchKind : uint8_t { read, write, modify };

class AccessGuard {
 public:
  virtual ~AccessGuard() = default;
  /// Returns null if a thread working on `part` may make this access. Otherwise returns the error
  /// that ends the run before the access happens.
  virtual std::exception_ptr judge(uint32_t part, const void* at, uint32_t bytes,
                                   TouchKind kind) const = 0;
};

}  // namespace tokenyard
