#include "device/architectures.hpp"

#include <fmt/format.h>

#include <charconv>

namespace tokenyard {

namespace {

/// One entry of the list, such as 90a-real.
struct Architecture {
  ComputeCapability of{0, 0};  ///< 0, 0 if the entry names none
  char bound_to = ' ';         ///< 'a': this architecture only; 'f': its major version
  bool machine_code = true, ptx = true;
};

Architecture parse(std::string_view entry) {
  Architecture found;
  int number = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), number);
  if (error != std::errc()) return found;
  found.of = {number / 10, number % 10};
  entry.remove_prefix(static_cast<size_t>(end - entry.data()));
  if (!entry.empty() && (entry.front() == 'a' || entry.front() == 'f')) {
    found.bound_to = entry.front();
    entry.remove_prefix(1);
  }
  found.machine_code = entry != "-virtual";
  found.ptx = entry != "-real";
  return found;
}

bool is_older(ComputeCapability gpu, ComputeCapability than) {
  return gpu.major < than.major || (gpu.major == than.major && gpu.minor < than.minor);
}

bool runs_on(const Architecture& code, ComputeCapability gpu) {
  if (code.of.major == 0) return true;
  if (is_older(gpu, code.of)) return false;
  const bool same_major = gpu.major == code.of.major;
  if (code.bound_to == 'a') return same_major && gpu.minor == code.of.minor;
  if (code.bound_to == 'f') return same_major;
  return code.ptx || (code.machine_code && same_major);
}

}  // namespace

bool has_code_for(std::string_view architectures, ComputeCapability gpu) {
  for (;;) {
    const size_t comma = architectures.find(',');
    if (runs_on(parse(architectures.substr(0, comma)), gpu)) return true;
    if (comma == std::string_view::npos) return false;
    architectures.remove_prefix(comma + 1);
  }
}

std::string missing_code(std::string_view architectures, ComputeCapability gpu) {
  if (has_code_for(architectures, gpu)) return "";
  const std::string name = fmt::format("sm_{}{}", gpu.major, gpu.minor);
  if (is_older(gpu, kOldestGpu)) {
    return fmt::format("it is {}, and kernels need sm_{}{} (H100) or newer; use device='host'",
                       name, kOldestGpu.major, kOldestGpu.minor);
  }
  return fmt::format(
      "it is {}, and this build has code for {} only; build Tokenyard with "
      "-DCMAKE_CUDA_ARCHITECTURES={}{}a-real",
      name, architectures, gpu.major, gpu.minor);
}

}  // namespace tokenyard
