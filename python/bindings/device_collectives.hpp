/// Python's handle of collectives on device tensors.
#pragma once

#include <memory>
#include <utility>

#include "collectives/device/host/device_collectives.hpp"
#include "upon_world.hpp"

namespace tokenyard::python {

/// A rank's DeviceCollectives and its World.
struct HeldDeviceCollectives : UponWorld {
  HeldDeviceCollectives(UponWorld upon, const device_collectives::Options& options,
                        const std::shared_ptr<HeldDeviceCollectives>& before)
      : UponWorld(std::move(upon)),
        collectives(*world, options, before ? &before->collectives : nullptr) {}
  device_collectives::DeviceCollectives collectives;
};

class DeviceCollectivesHandle {
 public:
  explicit DeviceCollectivesHandle(std::shared_ptr<HeldDeviceCollectives> held)
      : held_(std::move(held)) {}
  const std::shared_ptr<HeldDeviceCollectives>& get() const { return held_; }

 private:
  std::shared_ptr<HeldDeviceCollectives> held_;
};

}  // namespace tokenyard::python
