#include "ibgda/device_choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>
#include <tuple>

#include "tokenyard/error.hpp"

namespace tokenyard::ibgda {

namespace {

/// Returns how many folders two paths share from the root on.
size_t shared_folders(const std::string& one, const std::string& other) {
  size_t folders = 0;
  for (size_t at = 0; at <= one.size() && at <= other.size(); ++at) {
    const bool one_ends = at == one.size() || one[at] == '/';
    const bool other_ends = at == other.size() || other[at] == '/';
    if (one_ends && other_ends) ++folders;
    if (at == one.size() || at == other.size() || one[at] != other[at]) break;
  }
  return folders;
}

bool is_link_local(const Gid& gid) {
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

/// Returns the GID to use, or nothing.
const GidFacts* gid_of(const PortFacts& port, const DeviceRequest& request) {
  if (request.gid_index) {
    const auto at = std::ranges::find(port.gids, *request.gid_index, &GidFacts::index);
    return at == port.gids.end() ? nullptr : &*at;
  }
  // A link-local address reaches no other subnet.
  const auto rank = [](const GidFacts& gid) {
    return std::tuple(gid.kind, !is_link_local(gid.gid), ~gid.index);
  };
  const auto best = std::ranges::max_element(port.gids, {}, rank);
  return best == port.gids.end() ? nullptr : &*best;
}

bool is_allowed(const DeviceFacts& device, const PortFacts& port, const DeviceRequest& request) {
  return request.allowed.empty() || std::ranges::any_of(request.allowed, [&](const CardName& card) {
           const bool is_named = card.name.empty() || card.name == device.name ||
                                 std::ranges::count(port.nets, card.name) != 0;
           return is_named && (card.port == 0 || card.port == port.number);
         });
}

std::string text_of(const CardName& card) {
  std::string text = card.name.empty() ? "an mlx5 card" : card.name;
  if (card.port != 0) text += fmt::format(" port {}", card.port);
  return text;
}

/// Returns what is missing of a port; empty: nothing.
std::string missing_of(const DeviceFacts& device, const PortFacts& port,
                       const DeviceRequest& request) {
  if (!is_allowed(device, port, request)) return "not asked for";
  if (!device.is_mlx5) return "not a card of mlx5";
  if (!device.why_not.empty()) return device.why_not;
  if (port.state != "active") return "its state is " + port.state;
  if (gid_of(port, request) == nullptr)
    return request.gid_index ? fmt::format("no GID {}", *request.gid_index) : "no GID";
  if (!port.ethernet && port.lid == 0 && gid_of(port, request) == nullptr) return "no LID";
  return {};
}

std::string port_text(const DeviceFacts& device, const PortFacts& port,
                      const DeviceRequest& request) {
  std::string text = fmt::format("{} port {} ({}, {}", device.name, port.number,
                                 port.ethernet ? "Ethernet" : "InfiniBand", port.state);
  if (port.gigabits_per_s > 0) text += fmt::format(", {:g} Gbit/s", port.gigabits_per_s);
  if (!port.nets.empty()) text += fmt::format(", {}", fmt::join(port.nets, " "));
  if (const GidFacts* const gid = gid_of(port, request))
    text += fmt::format(", GID {} {}", gid->index, link_text(gid->kind));
  text += ")";
  const std::string missing = missing_of(device, port, request);
  if (!missing.empty()) text += ": " + missing;
  return text;
}

}  // namespace

const char* link_text(GidFacts::Kind kind) {
  switch (kind) {
    case GidFacts::Kind::infiniband:
      return "InfiniBand";
    case GidFacts::Kind::roce_v1:
      return "RoCE v1";
    case GidFacts::Kind::roce_v2:
      return "RoCE v2";
  }
  return "?";
}

std::string text_of(const std::vector<DeviceFacts>& devices, const DeviceRequest& request) {
  std::vector<std::string> lines;
  for (const DeviceFacts& device : devices) {
    for (const PortFacts& port : device.ports) lines.push_back(port_text(device, port, request));
    if (device.ports.empty()) {
      lines.push_back(device.name + ": " +
                      (device.why_not.empty() ? "it has no port" : device.why_not));
    }
  }
  return lines.empty() ? "no RDMA device" : fmt::format("{}", fmt::join(lines, "; "));
}

std::string text_of(const DeviceChoice& choice) {
  return fmt::format("{} port {}, {}, GID {}", choice.device.name, choice.port.number,
                     link_text(choice.gid.kind), choice.gid.index);
}

bool has_usable(const std::vector<DeviceFacts>& devices) {
  return std::ranges::any_of(devices, [](const DeviceFacts& device) {
    return std::ranges::any_of(
        device.ports, [&](const PortFacts& port) { return missing_of(device, port, {}).empty(); });
  });
}

DeviceChoice choose_device(const std::vector<DeviceFacts>& devices, const DeviceRequest& request) {
  using Usable = std::pair<const DeviceFacts*, const PortFacts*>;
  std::vector<Usable> usable;
  for (const DeviceFacts& device : devices)
    for (const PortFacts& port : device.ports)
      if (missing_of(device, port, request).empty()) usable.emplace_back(&device, &port);
  if (usable.empty()) {
    std::vector<std::string> names;
    for (const CardName& card : request.allowed) names.push_back(text_of(card));
    if (names.empty()) names.push_back(text_of(CardName{}));
    const std::string wanted = fmt::format("{}", fmt::join(names, " or "));
    throw Unsupported("network \"ibgda\"",
                      fmt::format("{} with an active port and a GID is missing; this host has {}",
                                  wanted, text_of(devices, request)));
  }
  const auto best = std::ranges::max_element(usable, {}, [&](const Usable& each) {
    const size_t near = request.near.empty() ? 0 : shared_folders(each.first->pci, request.near);
    return std::pair(near, each.second->gigabits_per_s);
  });
  return {.device = *best->first, .port = *best->second, .gid = *gid_of(*best->second, request)};
}

}  // namespace tokenyard::ibgda
