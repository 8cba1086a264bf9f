/// Diagnoses this machine: what works, and why the rest does not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tokenyard {

struct GpuFacts {
  uint32_t index = 0;
  std::string name, uuid;
  uint64_t memory_bytes = 0;
  std::vector<std::string> links;  ///< [GPUs] "NV18", "PCIe peer", "none"; "-" for the GPU itself
};

struct FabricFacts {
  std::string name;
  bool works = false;
  std::string why;  ///< why it works or does not
};

struct Diagnosis {
  std::string system;   ///< kernel, cores, memory
  std::string toolkit;  ///< CUDA toolkit that the library was built with
  std::string driver;   ///< NVIDIA's driver, or why there is none
  std::vector<GpuFacts> gpus;
  std::vector<FabricFacts> fabrics;

  std::string text() const;  ///< human-readable
};

/// Inspects the machine without changing anything. Reports missing parts rather than throw.
Diagnosis doctor();

}  // namespace tokenyard
