/// What works on this machine, and why the rest does not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tokenyard {

struct GpuFacts {
  uint32_t index = 0;
  std::string name, uuid;
  uint64_t memory_bytes = 0;
  std::vector<std::string> links;  ///< [GPUs] "NV18", "PCIe peer", "none"; "-" for itself
};

struct FabricFacts {
  std::string name;
  bool works = false;
  std::string why;  ///< it works so far, or does not
};

struct Diagnosis {
  std::string system;   ///< kernel, cores, memory
  std::string toolkit;  ///< CUDA that the library was built with
  std::string driver;   ///< NVIDIA's; why there is none, where there is none
  std::vector<GpuFacts> gpus;
  std::vector<FabricFacts> fabrics;

  std::string text() const;  ///< for people
};

/// Looks, and changes nothing. Never throws for what is missing: that is what it is asked about.
Diagnosis doctor();

}  // namespace tokenyard
