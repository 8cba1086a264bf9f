/// The options of an object, on which its ranks agree before they create it.
#pragma once

#include "collectives/device/host/device_collectives.hpp"
#include "collectives/device/kernels/window.hpp"

namespace tokenyard::device_collectives {

/// Returns the layout of each rank's window.
WindowLayout layout_of(const Options& options, uint32_t ranks);

/// The layout where ranks are on several hosts: call words, the sizes of pairs, and channels of
/// messages if a host has several ranks. HostLinks and MessageLinks have the rest.
WindowLayout layout_between_hosts(const Options& options, uint32_t ranks, bool has_channels);

/// Compares the options of all ranks; returns the key of packets. Collective. Throws as the
/// constructor of DeviceCollectives does.
Bytes16 agree_on_options(World& world, const Options& options);

}  // namespace tokenyard::device_collectives
