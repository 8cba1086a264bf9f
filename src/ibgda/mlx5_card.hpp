/// An open mlx5 card: its keys, queue pairs and registers. Owners give back what they own, so each
/// must end before the card, and queue pairs before keys.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "device/mlx5_layout.hpp"
#include "device/network_request.hpp"
#include "ibgda/commands.hpp"
#include "ibgda/device_choice.hpp"
#include "ibgda/ibgda_options.hpp"
#include "ibgda/rdma_driver.hpp"

namespace tokenyard::ibgda {

/// Calls `release` once, when it ends. A card that does not obey keeps what it has until it is
/// closed: `release` tells so, a destructor cannot.
template <class Thing, void (*give_back)(RdmaDevice&, const Thing&)>
class Owned {
 public:
  Owned() = default;
  Owned(RdmaDevice& device, const Thing& thing) : device_(&device), thing_(thing) {}
  Owned(Owned&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), thing_(other.thing_) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      (void)release();
      device_ = std::exchange(other.device_, nullptr);
      thing_ = other.thing_;
    }
    return *this;
  }
  ~Owned() { (void)release(); }

  const Thing& get() const { return thing_; }
  /// Returns the error of a card that does not obey; empty: there was none.
  std::string release() noexcept {
    RdmaDevice* const device = std::exchange(device_, nullptr);
    try {
      if (device != nullptr) give_back(*device, thing_);
      return {};
    } catch (const std::exception& error) {
      return error.what();
    }
  }

 private:
  RdmaDevice* device_ = nullptr;
  Thing thing_{};
};

/// Throws OsError if the card refuses.
void release_object(RdmaDevice& device, const Handle& object);
inline void release_lent(RdmaDevice& device, const QueueMemory& memory) {
  device.take_back(memory);
}
inline void release_memory(RdmaDevice& device, const RegisteredMemory& memory) {
  device.deregister(memory);
}
inline void release_registers(RdmaDevice& device, const RegisterPage& page) {
  device.unmap(page);
}

using CardObject = Owned<Handle, release_object>;
using LentMemory = Owned<QueueMemory, release_lent>;
using CardMemory = Owned<RegisteredMemory, release_memory>;
using CardRegisters = Owned<RegisterPage, release_registers>;

/// A region of this rank. Its key ends before the registration behind it.
struct CardRegion {
  CardMemory memory;
  CardObject key_object;
  MemoryKey key = 0;  ///< region_of_key of it is the region's number

  /// Throws OsError if the card does not obey: it may then still touch the memory, and the region's
  /// number stays in use.
  void close();
};

/// Where a queue pair's parts lie in memory of host and kernels: page by page, as cards have them.
struct QueueLayout {
  explicit QueueLayout(uint32_t slots);
  static constexpr size_t kPage = 4096;
  uint64_t blocks, completions, pair_record, completion_record;  ///< offsets
  size_t bytes;
};

/// A queue pair that is not connected yet. Ends before its memory.
struct CardQueue {
  /// Returns the errors of a card that does not obey, between semicolons: it may then still touch
  /// the memory. Empty: there was none.
  std::string close();

  LentMemory memory;
  CardObject completions;
  CardObject pair;
  uint32_t number = 0;  ///< of the pair
};

/// The values on which the two ends of a queue pair must agree.
struct CardLimits {
  uint8_t mtu = 0;  ///< as in PortFacts
  /// Reads and atomics that it can ask for, and serve, at once.
  uint8_t log_reads_asked = 0, log_reads_served = 0;
};

class Mlx5Card {
 public:
  /// Throws Unsupported, naming what the card lacks, InvalidArgument for a value that the port does
  /// not have, and OsError.
  Mlx5Card(std::unique_ptr<RdmaDevice> device, DeviceChoice choice, const IbgdaOptions& options,
           std::chrono::nanoseconds retry_time);

  const DeviceChoice& choice() const { return choice_; }
  /// Registers memory as region `number`. `dma_buf`: of GPU memory.
  CardRegion make_region(uint32_t number, std::byte* base, size_t bytes,
                         const std::optional<DmaBuf>& dma_buf);
  /// Makes a queue pair in `memory`, which begins at a page and has the layout's bytes.
  CardQueue make_queue(std::byte* memory, uint32_t slots);
  /// Brings it into service. `there`: what the other end's card can do; the smaller one of both
  /// counts.
  void connect(const CardQueue& queue, const PeerPlan& peer, const CardLimits& there);
  /// Ends it: all its requests complete with errors, and nothing of the peer is taken any more.
  void end(const CardQueue& queue);
  EthernetRoute route(const Gid& peer);
  const RegisterPage& registers() const { return registers_.get(); }
  const PathPlan& path() const { return path_; }
  CardLimits limits() const {
    return {.mtu = path_.mtu,
            .log_reads_asked = path_.log_reads_asked,
            .log_reads_served = path_.log_reads_served};
  }

 private:
  void check_capabilities();
  uint16_t pkey_index(const IbgdaOptions& options) const;
  CardObject create(const prm::Command& command, const char* name, uint32_t& number);
  void modify(const CardObject& object, const prm::Command& command, const char* name);

  std::unique_ptr<RdmaDevice> device_;
  const DeviceChoice choice_;
  PathPlan path_{};
  uint64_t klms_max_ = 0;
  CardRegisters registers_;
};

}  // namespace tokenyard::ibgda
