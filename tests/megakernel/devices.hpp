/// Fixture for tests of runs on the host and, if there is one, on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "device/accelerator.hpp"
#include "fabric/world_access.hpp"
#include "fabric/worlds.hpp"

namespace tokenyard::megakernel {

class OnDevices : public testing::TestWithParam<std::string> {
 public:
  static WorldOptions quick(std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    return {.timeout = timeout, .arena_bytes = size_t{4} << 20};
  }

 protected:
  void SetUp() override {
    if (on_host()) return;
    try {
      (void)alone();
    } catch (const Unsupported& error) {
      GTEST_SKIP() << error.what();
    }
  }

  bool on_host() const { return GetParam() == "host"; }

  /// Returns a world of one rank, for tests in which ranks do not matter.
  std::unique_ptr<World> alone(const WorldOptions& options = quick()) const {
    return std::move(World::in_process(1, GetParam(), options).front());
  }

  /// Returns whether each of `ranks` ranks would have its own device.
  bool devices_apart(uint32_t ranks) const {
    if (on_host()) return true;
    std::set<int> devices;
    for (const auto& world : World::in_process(ranks, GetParam(), quick()))
      devices.insert(accelerator_of(*world).device_index());
    return devices.size() == ranks;
  }
};

#define INSTANTIATE_ON_DEVICES(suite)                                \
  INSTANTIATE_TEST_SUITE_P(, suite, testing::Values("host", "cuda"), \
                           [](const auto& device) { return std::string(device.param); })

}  // namespace tokenyard::megakernel
