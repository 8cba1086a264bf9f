/// NVIDIA's driver, asked without linking it: present or not, what it says of GPUs and their links.
#pragma once

#include <string>
#include <vector>

#include "tokenyard/doctor.hpp"

namespace tokenyard {

struct NvidiaFacts {
  std::string driver;   ///< version; empty if there is none
  std::string why_not;  ///< there is no driver, or no GPU
  std::vector<GpuFacts> gpus;
  /// Whether allocations can be exported as file descriptors; why not, if not.
  bool descriptors = false;
  std::string descriptors_why_not;
};

NvidiaFacts ask_nvidia();

}  // namespace tokenyard
