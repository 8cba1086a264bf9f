#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "world/in_process.hpp"

namespace tokenyard {

std::string cuda_toolkit() {
  return fmt::format("{}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

}  // namespace tokenyard
