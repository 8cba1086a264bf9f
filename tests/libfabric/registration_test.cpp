/// Registered memory as cards demand it, over a stand-in for their libfabric: every mode, and
/// receive rings in memory of a GPU, which is the host's here, by another name.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "fabric/network_contract.hpp"
#include "fabric/network_ways.hpp"
#include "fabric/proxy/proxy_network.hpp"
#include "libfabric/registrations.hpp"

namespace tokenyard::testing {
namespace {

#ifndef TOKENYARD_LIBFABRIC_DEMANDING
TEST(Registration, EveryModeIsObeyed) {
  GTEST_SKIP() << "this machine has no libfabric (Debian: libfabric-dev)";
}
#else
using libfabric::testing::Registration;
using ::testing::HasSubstr;

constexpr int kDevice = 3;

class PretendedGpu final : public GpuExport {
 public:
  explicit PretendedGpu(std::string why_unordered = {})
      : why_unordered_(std::move(why_unordered)) {}
  int device() const override { return kDevice; }
  std::string why_unordered() const override { return why_unordered_; }
  std::string why_no_dma_buf() const override { return "it is pretended"; }
  std::optional<DmaBuf> dma_buf(const std::byte*, size_t) const override { return std::nullopt; }

 private:
  const std::string why_unordered_;
};

std::vector<Registration> registrations() {
  void* const library = dlopen(TOKENYARD_LIBFABRIC_DEMANDING, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return {};
  auto* const tell = reinterpret_cast<libfabric::testing::TellRegistrations*>(
      dlsym(library, libfabric::testing::kTellRegistrations));
  std::vector<Registration> all(tell(nullptr, 0));
  tell(all.data(), all.size());
  dlclose(library);
  return all;
}
/// Returns those since the first `before`.
std::vector<Registration> registrations_after(size_t before) {
  std::vector<Registration> all = registrations();
  all.erase(all.begin(), all.begin() + static_cast<ptrdiff_t>(before));
  return all;
}
size_t of_gpu(const std::vector<Registration>& all) {
  return static_cast<size_t>(std::ranges::count(all, true, &Registration::of_gpu));
}

ProxyNetworkOptions over(const std::string& modes) {
  return {.plugin = {.library = TOKENYARD_LIBFABRIC_DEMANDING,
                     .provider = modes + ":tcp;ofi_rxm",
                     .interface = "127.0.0.1"}};
}
std::vector<std::unique_ptr<World>> worlds(const ProxyNetworkOptions& options, uint32_t ranks = 2,
                                           uint32_t hosts = 2, size_t arena = 1 << 20) {
  return worlds_between_hosts(ranks, hosts, arena, proxy_networks(options));
}

TEST(Registration, EveryModeIsObeyed) {
  constexpr std::string_view kLetters = "lvape";
  for (uint32_t chosen = 0; chosen < 1u << kLetters.size(); ++chosen) {
    std::string modes;
    for (uint32_t letter = 0; letter < kLetters.size(); ++letter)
      if ((chosen >> letter & 1) != 0) modes += kLetters[letter];
    SCOPED_TRACE("modes " + modes);
    run_as_ranks(worlds(over(modes)), [](World& world) {
      signals_follow_puts(world, 4, {.in_arena = world.rank() == 0});
      carries(world, 5000);
    });
  }
  EXPECT_TRUE(std::ranges::none_of(registrations(), &Registration::open));
}

/// Rows arrive in it, and nothing else does.
TEST(Registration, ReceiveRingsLieInMemoryOfAGpu) {
  for (const std::string modes : {"h", "hlvape", "hle", "hvp"}) {
    SCOPED_TRACE("modes " + modes);
    const size_t before = registrations().size();
    ProxyNetworkOptions options = over(modes);
    options.gpu = std::make_shared<PretendedGpu>();
    options.gpu_memory = true;
    test::expect_none_failed(
        test::run_ranks(worlds(options, 4, 2, size_t{32} << 20), [](World& world) {
          const uint32_t far = (world.rank() + 2) % 4;
          EXPECT_THAT(world.topology().peers[far].how, HasSubstr("receive rings in GPU memory"));
          const test::ExchangeCase exchange{
              .shape = {.ranks = 4, .experts = 16, .hidden = 64, .topk = 4},
              .tokens = {5, 40, 0, 23},
              .picking = {.none = 0.1},
              .sms = 2};
          EXPECT_EQ(test::difference_after_exchange(world, exchange), "");
        }));
    const std::vector<Registration> all = registrations_after(before);
    // One per rank to try it, and one per rank for its exchange.
    EXPECT_EQ(of_gpu(all), 8u);
    size_t written = 0;
    for (const Registration& each : all) {
      EXPECT_FALSE(each.open);
      if (!each.of_gpu) continue;
      EXPECT_EQ(each.device, kDevice);
      EXPECT_FALSE(each.by_dma_buf);
      written += each.written;
    }
    // Rows of 64 values to another host, there and back.
    EXPECT_GE(written, 2u * 2 * 64 * 4);
  }
}

/// A rank that takes none decides for all.
TEST(Registration, PinnedRingsAreTheDefaultWhereAProviderRefusesMemoryOfAGpu) {
  for (const std::string modes : {"", "hf", "hd"}) {
    const size_t before = registrations().size();
    ProxyNetworkOptions options = over(modes);
    options.gpu = std::make_shared<PretendedGpu>();
    run_as_ranks(worlds(options), [](World& world) {
      EXPECT_FALSE(network_of(world)->takes_gpu_memory());
      EXPECT_THROW((void)network_of(world)->register_gpu_memory(nullptr, 1), InvalidArgument);
      signals_follow_puts(world, 2);
    });
    EXPECT_EQ(of_gpu(registrations_after(before)), 0u) << modes;
  }
}

TEST(Registration, MemoryOfAGpuMayBeRefusedByOption) {
  const size_t before = registrations().size();
  ProxyNetworkOptions options = over("h");
  options.gpu = std::make_shared<PretendedGpu>();
  options.gpu_memory = false;
  run_as_ranks(worlds(options), [](World& world) {
    EXPECT_FALSE(network_of(world)->takes_gpu_memory());
    signals_follow_puts(world, 2);
  });
  EXPECT_EQ(of_gpu(registrations_after(before)), 0u);
}

TEST(Registration, MemoryOfAGpuThatCannotBeHadIsRefusedByASentence) {
  const auto why = [](const std::string& modes, std::shared_ptr<const GpuExport> gpu) {
    ProxyNetworkOptions options = over(modes);
    options.gpu = std::move(gpu);
    options.gpu_memory = true;
    std::string said = "nothing";
    try {
      (void)worlds(options);
    } catch (const Unsupported& error) {
      said = error.what();
    }
    return said;
  };
  const auto gpu = std::make_shared<PretendedGpu>();
  EXPECT_THAT(why("h", nullptr), HasSubstr("no GPU runs the kernels"));
  EXPECT_THAT(why("", gpu), HasSubstr("tcp;ofi_rxm on lo offers no FI_HMEM"));
  EXPECT_THAT(why("hf", gpu), HasSubstr("fi_mr_regattr failed: Function not implemented"));
  EXPECT_THAT(why("hd", gpu), HasSubstr("by a dma-buf: "));
  EXPECT_THAT(why("h", std::make_shared<PretendedGpu>("the GPU does not see writes in order")),
              HasSubstr("rank 0: receive rings cannot lie in memory of a GPU: the GPU does not see "
                        "writes in order"));
}
#endif

}  // namespace
}  // namespace tokenyard::testing
