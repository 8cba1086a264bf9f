/// Detects accesses of tasks outside their declared regions, before they happen.
#pragma once

#include "device/access_guard.hpp"
#include "megakernel/proofs/declared_access.hpp"

namespace tokenyard::megakernel {

/// Judges accesses whose part numbers are task indices of `graph`, which must outlive this object.
class AccessWatch final : public AccessGuard {
 public:
  explicit AccessWatch(const Graph& graph) : graph_(graph), declared_(graph) {}

  /// Returns an InvalidGraph (undeclared_access), or null if the access is declared.
  std::exception_ptr judge(uint32_t part, const void* at, uint32_t bytes,
                           TouchKind kind) const override;

 private:
  const Graph& graph_;
  const DeclaredAccess declared_;
};

}  // namespace tokenyard::megakernel
