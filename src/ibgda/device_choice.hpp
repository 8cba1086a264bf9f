/// The choice of a card, a port and an address (GID) from what a host has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ibgda/rdma_driver.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::ibgda {

/// A card by its name, or by that of a network interface of it.
struct CardName {
  std::string name = {};  ///< empty: any
  uint8_t port = 0;       ///< 0: any
};

struct DeviceRequest {
  std::vector<CardName> allowed = {};      ///< empty: any
  std::optional<uint32_t> gid_index = {};  ///< else the best: RoCE v2 before v1
  std::string near = {};                   ///< PCI path of a GPU, in sysfs
};

struct DeviceChoice {
  DeviceFacts device;
  PortFacts port;
  GidFacts gid;
};

/// Asks each of `count` devices by `ask(index, facts)`, which may throw: then the error is the
/// reason why the device cannot be used, and hides no other one. Here for the plug-in, too.
std::vector<DeviceFacts> ask_each(size_t count, const auto& ask) {
  std::vector<DeviceFacts> found(count);
  for (size_t index = 0; index < count; ++index) {
    try {
      ask(index, found[index]);
    } catch (const Error& error) {
      found[index].why_not = error.what();
    }
  }
  return found;
}

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
