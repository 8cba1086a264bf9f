/// The choice of a card, a port and an address (GID) from what a host has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ibgda/rdma_driver.hpp"

namespace tokenyard::ibgda {

struct DeviceRequest {
  std::string device = {};                 ///< empty: any
  uint8_t port = 0;                        ///< 0: any
  std::optional<uint32_t> gid_index = {};  ///< else the best: RoCE v2 before v1
  std::string near = {};                   ///< PCI path of a GPU, in sysfs
};

struct DeviceChoice {
  DeviceFacts device;
  PortFacts port;
  GidFacts gid;
};

/// Takes the device whose PCI path shares most with the GPU's, of these the fastest port, of these
/// the first. Throws Unsupported, with what was found and what is missing, if none can be used.
DeviceChoice choose_device(const std::vector<DeviceFacts>& devices, const DeviceRequest& request);

/// Returns whether the choice above would succeed without a request.
bool has_usable(const std::vector<DeviceFacts>& devices);

/// Returns each port with its state and GID, or why it cannot be used.
std::string text_of(const std::vector<DeviceFacts>& devices, const DeviceRequest& request = {});
/// Returns "InfiniBand", "RoCE v1" or "RoCE v2".
const char* link_text(GidFacts::Kind kind);
/// Returns the choice in words: "mlx5_0 port 1, RoCE v2, GID 3".
std::string text_of(const DeviceChoice& choice);

}  // namespace tokenyard::ibgda
