/// Queries NVIDIA's driver, loaded at run time, about its presence, the GPUs and their links.
#pragma once

#include <cstdint>
#include <optional>
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
  std::vector<GpuFacts> gpus;          ///< the machine's
  std::optional<std::string> visible_devices;  ///< CUDA_VISIBLE_DEVICES, which may hide some
  std::string cuda_why_not;  ///< reason why CUDA shows this process no GPU; else empty
  /// Whether allocations can be exported as file descriptors, and the reason if not.
  bool descriptors = false;
  std::string descriptors_why_not;
};

NvidiaFacts ask_nvidia();

}  // namespace tokenyard
