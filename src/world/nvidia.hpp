/// Queries NVIDIA's driver, loaded at run time, about its presence, the GPUs and their links.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenyard/doctor.hpp"

namespace tokenyard {

struct NvidiaFacts {
  std::string driver;  ///< version; empty if there is none
  enum class Missing : uint8_t {
    nothing,
    library,  ///< the driver's library
    driver,   ///< an answer of the kernel's driver
    gpu,
  };
  Missing missing = Missing::nothing;  ///< the first that is
  std::string why_not;                 ///< reason why there is no driver or no GPU; else empty
  std::vector<GpuFacts> gpus;
  /// Whether allocations can be exported as file descriptors, and the reason if not.
  bool descriptors = false;
  std::string descriptors_why_not;
};

NvidiaFacts ask_nvidia();

}  // namespace tokenyard
