/// All kinds of accelerator on this machine, for tests that run on each of them.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "simt/host_accelerator.hpp"
#if TOKENYARD_WITH_CUDA
#include "device/cuda/accelerator.hpp"
#endif

namespace tokenyard::testing {

struct AcceleratorCase {
  std::string name;
  std::function<std::unique_ptr<Accelerator>()> make;
};

inline std::vector<AcceleratorCase> accelerators() {
  std::vector<AcceleratorCase> cases;
  cases.push_back({"host", [] { return std::make_unique<simt::HostAccelerator>([] {}); }});
#if TOKENYARD_WITH_CUDA
  if (cuda::gpu_count() > 0)
    cases.push_back({"gpu", [] { return std::make_unique<cuda::CudaAccelerator>(0, [] {}); }});
#endif
  return cases;
}

class OnAccelerator : public ::testing::TestWithParam<AcceleratorCase> {
 protected:
  std::unique_ptr<Accelerator> accelerator = GetParam().make();
};

#define INSTANTIATE_ON_ACCELERATORS(Suite)                                         \
  INSTANTIATE_TEST_SUITE_P(Everywhere, Suite, ::testing::ValuesIn(accelerators()), \
                           [](const auto& info) { return info.param.name; })

}  // namespace tokenyard::testing
