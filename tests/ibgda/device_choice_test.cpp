#include "ibgda/device_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tokenyard/error.hpp"

namespace tokenyard::ibgda {
namespace {

using ::testing::HasSubstr;

GidFacts gid(uint32_t index, GidFacts::Kind kind, uint8_t first = 0) {
  return {.index = index, .kind = kind, .gid = {first, static_cast<uint8_t>(first ? 0x80 : 0)}};
}
const GidFacts kV1 = gid(0, GidFacts::Kind::roce_v1), kV2 = gid(3, GidFacts::Kind::roce_v2);

DeviceFacts card(const std::string& name, const std::string& pci, const std::string& state) {
  return {.name = name,
          .pci = pci,
          .is_mlx5 = true,
          .ports = {{.number = 1,
                     .state = state,
                     .ethernet = true,
                     .mtu = 3,
                     .gigabits_per_s = 400,
                     .gids = {kV1, kV2}}}};
}

std::string refusal(const std::vector<DeviceFacts>& devices, const DeviceRequest& request = {}) {
  try {
    return "chosen: " + choose_device(devices, request).device.name;
  } catch (const Unsupported& error) {
    return error.what();
  }
}

TEST(IbgdaDevices, TheOneNearestToTheGpuIsTaken) {
  const std::vector<DeviceFacts> devices = {card("mlx5_0", "/sys/devices/pci0000:00/a/b", "active"),
                                            card("mlx5_1", "/sys/devices/pci0000:80/c/d", "active"),
                                            card("mlx5_2", "/sys/devices/pci0000:80/e/f", "active"),
                                            card("mlx5_3", "/sys/devices/pci0000:80/e/g", "down")};
  const auto near = [&](const std::string& gpu) {
    return choose_device(devices, {.near = gpu}).device.name;
  };
  EXPECT_EQ(near("/sys/devices/pci0000:80/e/g"), "mlx5_2");
  EXPECT_EQ(near("/sys/devices/pci0000:80/x"), "mlx5_1") << "of equals the first";
  EXPECT_EQ(near("/sys/devices/pci0000:00/a/bb"), "mlx5_0") << "folders count, not letters";
  EXPECT_EQ(near(""), "mlx5_0");
  EXPECT_EQ(choose_device(devices, {.allowed = {{.name = "mlx5_1"}}}).device.name, "mlx5_1");
}

TEST(IbgdaDevices, AFasterPortComesFirst) {
  std::vector<DeviceFacts> devices = {card("mlx5_0", "", "active"), card("mlx5_1", "", "active")};
  devices[0].ports[0].gigabits_per_s = 25;
  EXPECT_EQ(choose_device(devices, {}).device.name, "mlx5_1");
}

TEST(IbgdaDevices, RoceV2ComesBeforeV1) {
  std::vector<DeviceFacts> devices = {card("mlx5_0", "", "active")};
  std::vector<GidFacts>& gids = devices[0].ports[0].gids;
  EXPECT_EQ(choose_device(devices, {}).gid.index, 3u);
  gids = {kV1, gid(1, GidFacts::Kind::roce_v2, 0xfe), kV2, gid(5, GidFacts::Kind::roce_v2)};
  EXPECT_EQ(choose_device(devices, {}).gid.index, 3u) << "not link-local, the first of its kind";
  EXPECT_EQ(choose_device(devices, {.gid_index = 0}).gid.kind, GidFacts::Kind::roce_v1);
  gids = {kV1, gid(1, GidFacts::Kind::roce_v2, 0xfe)};
  EXPECT_EQ(choose_device(devices, {}).gid.index, 1u) << "v2 even if link-local";
  EXPECT_EQ(text_of(choose_device(devices, {})), "mlx5_0 port 1, RoCE v2, GID 1");
}

TEST(IbgdaDevices, WhatIsMissingIsToldInOneSentence) {
  EXPECT_THAT(refusal({}), HasSubstr("an mlx5 card with an active port and a GID is missing; this "
                                     "host has no RDMA device"));
  DeviceFacts other = card("efa_0", "", "active");
  other.is_mlx5 = false;
  DeviceFacts closed{.name = "mlx5_7", .pci = "", .is_mlx5 = true, .why_not = "permission denied"};
  DeviceFacts bare = card("mlx5_2", "", "active");
  bare.ports[0].gids.clear();
  const std::string told = refusal({card("mlx5_0", "", "down"), other, closed, bare});
  EXPECT_THAT(told, HasSubstr("mlx5_0 port 1 (Ethernet, down, 400 Gbit/s, GID 3 RoCE v2): its "
                              "state is down"));
  EXPECT_THAT(told, HasSubstr("GID 3 RoCE v2): not a card of mlx5"));
  EXPECT_THAT(told, HasSubstr("mlx5_7: permission denied"));
  EXPECT_THAT(told, HasSubstr("mlx5_2 port 1 (Ethernet, active, 400 Gbit/s): no GID"));
  const std::vector<DeviceFacts> one = {card("mlx5_0", "", "active")};
  EXPECT_THAT(refusal(one, {.allowed = {{.name = "mlx5_9", .port = 2}}}),
              HasSubstr("mlx5_9 port 2 with an"));
  EXPECT_THAT(refusal(one, {.gid_index = 8}), HasSubstr("no GID 8"));
  EXPECT_TRUE(has_usable(one));
  EXPECT_FALSE(has_usable({other, closed, bare}));
}

TEST(IbgdaDevices, AListAllowsSomeCards) {
  std::vector<DeviceFacts> devices = {card("mlx5_0", "/sys/devices/pci0000:00/a", "active"),
                                      card("mlx5_1", "/sys/devices/pci0000:80/b", "active"),
                                      card("mlx5_2", "/sys/devices/pci0000:80/c", "active")};
  devices[2].ports[0].nets = {"eth2"};
  const auto chosen = [&](const std::vector<CardName>& allowed) {
    return choose_device(devices, {.allowed = allowed, .near = "/sys/devices/pci0000:80/gpu"})
        .device.name;
  };
  EXPECT_EQ(chosen({}), "mlx5_1");
  EXPECT_EQ(chosen({{.name = "mlx5_0"}, {.name = "eth2"}}), "mlx5_2") << "of these the nearest";
  EXPECT_EQ(chosen({{.name = "mlx5_0"}, {.name = "eth2", .port = 2}}), "mlx5_0");
  EXPECT_THAT(refusal(devices, {.allowed = {{.name = "mlx5_7"}, {.name = "mlx5_0", .port = 2}}}),
              HasSubstr("mlx5_7 or mlx5_0 port 2 with an active port"));
}

TEST(IbgdaDevices, OneThatCannotBeAskedHidesNoOther) {
  const std::vector<DeviceFacts> devices = ask_each(3, [](size_t index, DeviceFacts& facts) {
    facts = card("mlx5_" + std::to_string(index), "", "active");
    if (index == 1) throw OsError("ibv_query_device", 5, "it hangs");
  });
  EXPECT_EQ(choose_device({devices[0], devices[1]}, {}).device.name, "mlx5_0");
  EXPECT_EQ(choose_device({devices[1], devices[2]}, {}).device.name, "mlx5_2");
  EXPECT_THAT(text_of(devices), HasSubstr("mlx5_1 port 1"));
  EXPECT_THAT(text_of(devices), HasSubstr("it hangs"));
}

}  // namespace
}  // namespace tokenyard::ibgda
