/// The memory that a stand-in for a provider was asked to register, as a test sees it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tokenyard::libfabric::testing {

struct Registration {
  bool of_gpu = false;
  int device = 0;
  bool by_dma_buf = false;
  uint64_t access = 0;
  const void* memory = nullptr;
  size_t bytes = 0;
  size_t written = 0;  ///< bytes that peers put here
  bool open = true;
};

/// Copies at most `most` of them, and returns how many there were, in order.
using TellRegistrations = size_t(Registration* into, size_t most);
inline constexpr const char* kTellRegistrations = "tokenyard_test_registrations";

}  // namespace tokenyard::libfabric::testing
