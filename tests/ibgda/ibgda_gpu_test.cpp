/// Kernels of a GPU that drive the software card: rings, doorbell records and the page of doorbells
/// lie in pinned memory, which threads of the host read in the card's place.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <iostream>

#include "device/cuda/accelerator.hpp"
#include "device/cuda/runtime.hpp"
#include "device/cuda/shared_gpu.hpp"
#include "fabric/network_contract.hpp"
#include "fabric/network_ways.hpp"
#include "fabric/nvlink/nvlink_fabric.hpp"
#include "ibgda/ibgda_network.hpp"
#include "ibgda/software_cards.hpp"
#include "tokenyard/doctor.hpp"

namespace tokenyard::testing {
namespace {

using ibgda::IbgdaOptions;
using ibgda::testing::SoftwareCards;

/// A software card's registers are a page of the host's memory, and it reaches no other.
class PinnedRegisters final : public ibgda::GpuMemory {
 public:
  std::string pci() const override { return "/sys/devices/pci0/gpu"; }
  int device() const override { return 0; }
  std::string why_unordered() const override { return {}; }
  std::string why_no_dma_buf() const override { return "a software card is on the host"; }
  std::optional<DmaBuf> dma_buf(const std::byte*, size_t) const override { return std::nullopt; }
  std::byte* map_registers(std::byte* registers, size_t) override {
    cuda::check(cudaHostRegister(registers, SoftwareCards::kPage, cudaHostRegisterMapped),
                "cudaHostRegister");
    void* mapped = nullptr;
    cuda::check(cudaHostGetDevicePointer(&mapped, registers, 0), "cudaHostGetDevicePointer");
    return static_cast<std::byte*>(mapped);
  }
  void unmap_registers(std::byte* registers) override {
    cuda::check(cudaHostUnregister(registers), "cudaHostUnregister");
  }
};

/// Threads that share a GPU.
class IbgdaOnAGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::gpu_count() == 0) GTEST_SKIP() << "there is no GPU";
  }
  static void run(uint32_t hosts, uint32_t ranks, const Program& program) {
    constexpr std::chrono::seconds kTimeout{20};
    const auto cards = std::make_shared<SoftwareCards>();
    const auto gpu = std::make_shared<cuda::SharedGpu>(0, kTimeout / 2);
    std::vector<std::shared_ptr<Accelerator>> accelerators;
    for (uint32_t rank = 0; rank < ranks; ++rank)
      accelerators.push_back(std::make_shared<cuda::SharedGpuAccelerator>(gpu, rank, [] {}));
    const auto network = [=](const NetworkPlace& place, TimePoint until) {
      IbgdaOptions options;
      options.driver = cards->driver(place.bootstrap.rank());
      options.gpu = std::make_shared<PinnedRegisters>();
      options.queues_per_peer = 2;
      options.slots = 64;
      return ibgda::ibgda_networks(options)(place, until);
    };
    run_as_ranks(join_all(accelerators, std::make_shared<nvlink::NvlinkFabric>(hosts),
                          {.timeout = kTimeout, .arena_bytes = size_t{64} << 20, .hosts = hosts},
                          {}, network),
                 program);
  }
};

TEST_F(IbgdaOnAGpu, KeepsTheContract) {
  run(2, 2, [](World& world) { signals_follow_puts(world, 40); });
  run(2, 4, [](World& world) { flush_frees_sources(world); });
  run(2, 2, [](World& world) { rings_keep_credit(world, kRingSlots, 40); });
  for (const uint32_t bytes : {4u, (1u << 20) + 4})
    run(2, 2, [&](World& world) { carries(world, bytes); });
}

TEST_F(IbgdaOnAGpu, WarpsShareAQueue) {
  for (const uint32_t blocks : {1, 2, 4})
    run(2, 2, [&](World& world) { warps_share_a_queue(world, blocks, kSharers / blocks); });
}

TEST_F(IbgdaOnAGpu, RefusesBadRequests) {
  for (uint32_t what = 0; what < kBadRequests; ++what) {
    SCOPED_TRACE(what);
    run(2, 2, [&](World& world) { refuses(world, static_cast<BadRequest>(what)); });
  }
}

TEST_F(IbgdaOnAGpu, IsTimed) {
  run(2, 2, [](World& world) {
    for (const PeerTimes& times : time_peers(world, std::chrono::seconds(10))) {
      EXPECT_EQ(times.error, "");
      if (world.rank() == 0)
        std::cout << times.how << ": " << times.round_trip_us << " us there and back, "
                  << times.bytes_per_second / 1e9 << " GB/s\n";
    }
  });
}

}  // namespace
}  // namespace tokenyard::testing
