/// The calls to the driver of RDMA cards. The plug-in makes them through rdma-core (rdma_core.cpp);
/// a test answers in its place (tests/ibgda/software_cards.hpp).
///
/// A card takes commands of the PRM (prm.hpp) as bytes. Numbers here are those that commands need.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tokenyard::ibgda {

using Gid = std::array<uint8_t, 16>;

struct GidFacts {
  enum class Kind : uint8_t { infiniband, roce_v1, roce_v2 };
  uint32_t index = 0;  ///< in the port's table
  Kind kind = Kind::infiniband;
  Gid gid{};
};

struct PortFacts {
  uint8_t number = 1;
  std::string state;      ///< "active", "down", ...
  bool ethernet = false;  ///< else InfiniBand
  uint16_t lid = 0;       ///< 0 on Ethernet
  uint8_t mtu = 0;        ///< active one: 1 is 256 bytes, each more doubles them, up to 5
  double gigabits_per_s = 0;
  std::vector<GidFacts> gids = {};     ///< those in use
  std::vector<uint16_t> pkeys = {};    ///< [index]
  std::vector<std::string> nets = {};  ///< names of its network interfaces
};

struct DeviceFacts {
  std::string name;  ///< "mlx5_0"
  std::string pci;   ///< path of its PCI device in sysfs
  bool is_mlx5 = false;
  std::string why_not = {};  ///< the reason why this process cannot use it, if there is one
  std::vector<PortFacts> ports = {};
};

/// A driver's own name of a thing; 0 is none.
using Handle = uintptr_t;

/// Memory that a card's queues lie in.
struct QueueMemory {
  Handle handle = 0;
  uint32_t number = 0;
};
/// Memory that requests read and write, at its own addresses.
struct RegisteredMemory {
  Handle handle = 0;
  uint32_t key = 0;
};
/// A page of a card's registers, in this process's memory.
struct RegisterPage {
  Handle handle = 0;
  uint32_t number = 0;
  std::byte* blue_flame = nullptr;  ///< two halves of a BlueFlame register
};
/// Where RoCE packets go.
struct EthernetRoute {
  std::array<uint8_t, 6> mac{};
  uint16_t udp_source_port = 0;
};
struct EthernetPath {
  uint8_t port = 1;
  uint8_t gid_index = 0;
  uint8_t traffic_class = 0;
  Gid target{};
};

/// An open device with one protection domain. Calls throw OsError; those of commands return the
/// errno and leave the card's answer in `out`, whose status may say more. All that was made must be
/// given back before it is destroyed.
class RdmaDevice {
 public:
  virtual ~RdmaDevice() = default;
  virtual uint32_t protection_domain() = 0;
  virtual uint32_t event_queue() = 0;

  virtual int query(std::span<const std::byte> in, std::span<std::byte> out) = 0;
  /// Makes the object of a CREATE command; `made` is its handle.
  virtual int create(std::span<const std::byte> in, std::span<std::byte> out, Handle& made) = 0;
  virtual int modify(Handle object, std::span<const std::byte> in, std::span<std::byte> out) = 0;
  virtual int destroy(Handle object) = 0;

  virtual QueueMemory lend(void* memory, size_t bytes) = 0;
  virtual void take_back(const QueueMemory& memory) = 0;
  virtual RegisteredMemory register_memory(void* memory, size_t bytes) = 0;
  /// Registers `bytes` from `offset` on of a dma-buf, at address `address`.
  virtual RegisteredMemory register_dma_buf(int descriptor, uint64_t offset, size_t bytes,
                                            uint64_t address) = 0;
  virtual void deregister(const RegisteredMemory& memory) = 0;
  virtual RegisterPage map_registers() = 0;
  virtual void unmap(const RegisterPage& page) = 0;
  /// Asks the kernel for the neighbour that a GID leads to.
  virtual EthernetRoute route(const EthernetPath& path) = 0;
};

class RdmaDriver {
 public:
  virtual ~RdmaDriver() = default;
  virtual std::vector<DeviceFacts> devices() = 0;
  /// Throws OsError or Unsupported.
  virtual std::unique_ptr<RdmaDevice> open(const std::string& name) = 0;
};

}  // namespace tokenyard::ibgda
