/// The contract of networks over the whole way of mlx5 cards but a card: the host side makes queue
/// pairs by commands, kernels write entries, and a software card executes them. Then what the host
/// side says to its card, in which order, and what it refuses.
#include "ibgda/ibgda_network.hpp"

#include <cstdlib>

#include "fabric/meeting_place.hpp"
#include "fabric/network/network_memory.hpp"
#include "fabric/network_kernel_definitions.hpp"
#include "fabric/network_suite.hpp"
#include "ibgda/driver_plugin.hpp"
#include "ibgda/software_cards.hpp"

namespace tokenyard::testing {
namespace {

using ibgda::IbgdaOptions;
using ibgda::testing::Recorded;
using ibgda::testing::SoftwareCards;
using ::testing::HasSubstr;
using Change = std::function<void(uint32_t rank, IbgdaOptions& options)>;

std::vector<std::unique_ptr<World>> make_worlds(
    const std::shared_ptr<SoftwareCards>& cards, uint32_t ranks, uint32_t hosts, uint32_t slots,
    const Change& change = {}, std::vector<std::shared_ptr<Accelerator>> accelerators = {}) {
  WorldOptions options;
  options.timeout = std::chrono::seconds(60);
  options.arena_bytes = 4 << 20;
  options.hosts = hosts;
  if (accelerators.empty()) accelerators = host_accelerators(ranks);
  return join_all(accelerators, std::make_shared<InProcessFabric>(hosts), options, {},
                  [=](const NetworkPlace& place, TimePoint until) {
                    const uint32_t rank = place.bootstrap.rank();
                    IbgdaOptions chosen;
                    chosen.driver = cards->driver(rank);
                    chosen.queues_per_peer = 2;
                    chosen.slots = slots;
                    if (change) change(rank, chosen);
                    return ibgda::ibgda_networks(chosen)(place, until);
                  });
}

NetworkWay over_cards(const char* name, bool ethernet, uint32_t slots) {
  return {.name = name,
          .make =
              [=](uint32_t ranks, uint32_t hosts) {
                const auto cards = std::make_shared<SoftwareCards>();
                cards->ethernet = ethernet;
                return ConnectedWorlds{
                    make_worlds(cards, ranks, hosts, slots),
                    [cards](uint32_t one, uint32_t other) { cards->partition(one, other); }};
              },
          .told = ethernet ? "ibgda, mlx5_0 port 2, RoCE v2, GID 3"
                           : "ibgda, mlx5_0 port 2, InfiniBand, GID 3",
          .sizes = {4, (1 << 20) + 4},
          .shares_queues = true};
}

INSTANTIATE_TEST_SUITE_P(Over, NetworkContract,
                         ::testing::Values(over_cards("infiniband", false, 4),
                                           over_cards("roce", true, 64)),
                         name_of_way);

std::vector<std::string> names_of(const std::vector<Recorded>& calls) {
  std::vector<std::string> names;
  for (const Recorded& call : calls) names.push_back(call.what);
  return names;
}

TEST(IbgdaCalls, AreMadeAndUndoneInOrder) {
  const auto cards = std::make_shared<SoftwareCards>();
  auto worlds = make_worlds(cards, 2, 2, 4,
                            [](uint32_t, IbgdaOptions& options) { options.queues_per_peer = 1; });
  EXPECT_EQ(names_of(cards->calls(0)),
            (std::vector<std::string>{
                "open mlx5_0", "QUERY_HCA_CAP", "QUERY_HCA_CAP", "registers", "memory",
                "CREATE_MKEY",            // words that fetch-adds return
                "memory", "CREATE_MKEY",  // the arena
                "umem", "CREATE_CQ", "CREATE_QP", "RST2INIT_QP", "INIT2RTR_QP", "RTR2RTS_QP"}));
  const size_t made = cards->calls(0).size();
  on_every_rank(2, [&](uint32_t rank) { worlds[rank].reset(); });
  std::vector<std::string> undone = names_of(cards->calls(0));
  undone.erase(undone.begin(), undone.begin() + static_cast<ptrdiff_t>(made));
  std::erase(undone, "2ERR_QP");  // Of the rank that hears first that the other has left.
  EXPECT_EQ(undone,
            (std::vector<std::string>{"DESTROY pair", "DESTROY completions", "take back umem",
                                      "DESTROY key", "deregister memory", "DESTROY key",
                                      "deregister memory", "unmap registers", "close"}));
}

TEST(IbgdaCalls, QueuesToARankThatIsGoneAreEnded) {
  const auto cards = std::make_shared<SoftwareCards>();
  auto worlds = make_worlds(cards, 2, 2, 4);
  worlds[1].reset();
  Network& network = *network_of(*worlds[0]);
  const auto ended = [&] {
    network.check("later");
    return std::ranges::count(names_of(cards->calls(0)), "2ERR_QP");
  };
  Accelerator& accelerator = accelerator_of(*worlds[0]);
  const TimePoint until = accelerator.now() + std::chrono::seconds(60);
  EXPECT_TRUE(accelerator.wait_until(until, [&] { return ended() == 2; }));
  EXPECT_EQ(ended(), 2) << "each once";
  EXPECT_TRUE(network.drain(until));
}

/// Stands in for CUDA.
class TestGpu final : public ibgda::GpuMemory {
 public:
  explicit TestGpu(bool exports, bool refuses = false) : exports_(exports), refuses_(refuses) {}
  std::string pci() const override { return "/sys/devices/pci0/gpu"; }
  int device() const override { return 0; }
  std::string why_unordered() const override { return {}; }
  std::string why_no_dma_buf() const override { return exports_ ? "" : "it exports nothing"; }
  std::optional<DmaBuf> dma_buf(const std::byte*, size_t bytes) const override {
    if (!exports_ || bytes != 4 << 20) return std::nullopt;
    if (refuses_) throw OsError("cuMemGetHandleForAddressRange", 1, "no dma-buf");
    return DmaBuf{};
  }
  std::byte* map_registers(std::byte* registers, size_t) override {
    mapped = registers;
    return registers;
  }
  void unmap_registers(std::byte* registers) override {
    EXPECT_EQ(registers, mapped);
    mapped = nullptr;
  }
  std::byte* mapped = nullptr;

 private:
  const bool exports_, refuses_;
};

TEST(IbgdaCalls, AGpuMapsRegistersAndMayExportItsArena) {
  struct Gpu {
    bool exports, refuses;
    const char* way;
  };
  for (const Gpu& kind :
       {Gpu{true, false, "GID 3"}, Gpu{false, false, "pinned rings (it exports nothing)"},
        Gpu{true, true, "pinned rings (cuMemGetHandleForAddressRange"}}) {
    SCOPED_TRACE(kind.way);
    const auto cards = std::make_shared<SoftwareCards>();
    const std::shared_ptr<TestGpu> gpus[] = {std::make_shared<TestGpu>(kind.exports, kind.refuses),
                                             std::make_shared<TestGpu>(kind.exports)};
    auto worlds = make_worlds(
        cards, 2, 2, 8, [&](uint32_t rank, IbgdaOptions& options) { options.gpu = gpus[rank]; });
    EXPECT_NE(gpus[0]->mapped, nullptr);
    const Network& network = *network_of(*worlds[0]);
    const bool reaches = kind.exports && !kind.refuses;
    EXPECT_EQ(network.reaches_arena(), reaches);
    EXPECT_THAT(network.way(1), HasSubstr(kind.way));
    EXPECT_EQ(network.way(1).find("pinned rings") == std::string::npos, reaches);
    EXPECT_EQ(std::ranges::count(names_of(cards->calls(0)), "dma-buf"), reaches ? 1 : 0);
    // A rank whose arena is pinned and one whose is not reach each other.
    on_every_rank(2, [&](uint32_t rank) {
      signals_follow_puts(*worlds[rank], 3);
      worlds[rank].reset();
    });
    EXPECT_EQ(gpus[0]->mapped, nullptr);
  }
}

TEST(IbgdaCalls, MemoryThatOneRankCannotRegisterIsToldOnAll) {
  const auto cards = std::make_shared<SoftwareCards>();
  const std::shared_ptr<TestGpu> gpus[] = {std::make_shared<TestGpu>(true),
                                           std::make_shared<TestGpu>(false)};
  auto worlds = make_worlds(
      cards, 2, 2, 8, [&](uint32_t rank, IbgdaOptions& options) { options.gpu = gpus[rank]; });
  const auto run_out_of_regions = [](World& world) {
    Network& network = *network_of(world);
    DeviceMemory memory(accelerator_of(world), 64, DeviceMemory::Kind::shared);
    std::vector<MemoryKey> keys;
    for (bool has_room = world.rank() == 1; has_room;) {
      try {
        keys.push_back(network.register_memory(memory.as<std::byte>(), 64));
      } catch (const InvalidArgument&) {
        has_room = false;
      }
    }
    try {
      const NetworkMemory more(world, 4096);
      promise(false, "a rank without a region was not told");
    } catch (const InvalidArgument& error) {
      promise(error.rank == 1, error.what());
    }
    for (const MemoryKey key : keys) network.deregister(key);
    const NetworkMemory enough(world, 4096);
    world.barrier("all have memory");
  };
  on_every_rank(2, [&](uint32_t rank) {
    run_out_of_regions(*worlds[rank]);
    worlds[rank].reset();
  });
}

TEST(IbgdaCalls, OptionsReachTheCard) {
  const auto cards = std::make_shared<SoftwareCards>();
  cards->ethernet = true;
  auto worlds = make_worlds(cards, 2, 2, 16, [](uint32_t rank, IbgdaOptions& options) {
    options.queues_per_peer = 1;
    options.traffic_class = 104;
    options.service_level = 5;
    options.pkey = 0x8001;
    options.mtu = rank == 0 ? 4 : 0;
    options.retries = 3;
    options.timeout = std::chrono::milliseconds(600);
  });
  on_every_rank(2, [&](uint32_t rank) { worlds[rank].reset(); });
  using ibgda::prm::QueuePair;
  const auto field = [&](const char* command, ibgda::prm::Field at) -> uint64_t {
    for (const Recorded& call : cards->calls(1))
      if (call.what == command) return ibgda::prm::get(call.bytes, at);
    return ~uint64_t{0};
  };
  EXPECT_EQ(field("RST2INIT_QP", QueuePair::kPkeyIndex), 1u);
  EXPECT_EQ(field("INIT2RTR_QP", QueuePair::kMtu), 4u) << "the smaller one of both ends";
  EXPECT_EQ(field("INIT2RTR_QP", QueuePair::kDscp), 26u);
  EXPECT_EQ(field("INIT2RTR_QP", QueuePair::kEthernetPriority), 5u);
  EXPECT_EQ(field("INIT2RTR_QP", QueuePair::kGidIndex), 3u);
  EXPECT_EQ(field("INIT2RTR_QP", QueuePair::kLogReadsServed), 4u) << "the card's limit";
  EXPECT_EQ(field("RTR2RTS_QP", QueuePair::kRetries), 3u);
  // Four tries of 4.096 us * 2^13 are 134 ms, and a card may take four times as long.
  EXPECT_EQ(field("RTR2RTS_QP", QueuePair::kAckTimeout), 13u);
  EXPECT_EQ(field("CREATE_QP", QueuePair::kLogSends), 4u);
}

/// Signals are fetch-adds: an end that has more under way than the other one serves is refused.
TEST(IbgdaCalls, TheEndsAgreeOnReadsUnderWay) {
  const auto cards = std::make_shared<SoftwareCards>();
  cards->log_reads = {{0, {4, 5}}, {1, {6, 2}}};
  auto worlds = make_worlds(cards, 2, 2, 16,
                            [](uint32_t, IbgdaOptions& options) { options.queues_per_peer = 1; });
  on_every_rank(2, [&](uint32_t rank) { worlds[rank].reset(); });
  using ibgda::prm::QueuePair;
  const auto field = [&](uint32_t rank, const char* command, ibgda::prm::Field at) -> uint64_t {
    for (const Recorded& call : cards->calls(rank))
      if (call.what == command) return ibgda::prm::get(call.bytes, at);
    return ~uint64_t{0};
  };
  EXPECT_EQ(field(0, "RTR2RTS_QP", QueuePair::kLogReadsAsked), 2u) << "what rank 1 serves";
  EXPECT_EQ(field(1, "INIT2RTR_QP", QueuePair::kLogReadsServed), 2u);
  EXPECT_EQ(field(1, "RTR2RTS_QP", QueuePair::kLogReadsAsked), 5u) << "what rank 0 serves";
  EXPECT_EQ(field(0, "INIT2RTR_QP", QueuePair::kLogReadsServed), 5u);
}

/// Says when memory of a size is freed.
class WatchedAccelerator final : public simt::HostAccelerator {
 public:
  WatchedAccelerator(std::shared_ptr<SoftwareCards> cards, uint32_t rank, size_t bytes)
      : simt::HostAccelerator([] {}), cards_(std::move(cards)), rank_(rank), bytes_(bytes) {}
  void* allocate_shared(size_t bytes) override {
    void* const memory = simt::HostAccelerator::allocate_shared(bytes);
    if (bytes == bytes_) watched_.push_back(memory);
    return memory;
  }
  void free_shared(void* memory) override {
    if (std::ranges::count(watched_, memory) != 0) cards_->record(rank_, "free");
    simt::HostAccelerator::free_shared(memory);
  }

 private:
  const std::shared_ptr<SoftwareCards> cards_;
  const uint32_t rank_;
  const size_t bytes_;
  std::vector<void*> watched_;
};

TEST(IbgdaCalls, MemoryThatACardKeepsIsNotUsedAgain) {
  const size_t queue_bytes = ibgda::QueueLayout(4).bytes + ibgda::QueueLayout::kPage;
  for (const char* const call : {"none", "take back umem", "DESTROY pair", "deregister memory"}) {
    SCOPED_TRACE(call);
    const auto cards = std::make_shared<SoftwareCards>();
    std::vector<std::shared_ptr<Accelerator>> accelerators;
    for (uint32_t rank = 0; rank < 2; ++rank)
      accelerators.push_back(std::make_shared<WatchedAccelerator>(cards, rank, queue_bytes));
    auto worlds = make_worlds(
        cards, 2, 2, 4, [](uint32_t, IbgdaOptions& options) { options.queues_per_peer = 1; },
        accelerators);
    std::vector<std::byte> memory(5000);
    Network& network = *network_of(*worlds[0]);
    const MemoryKey key = network.register_memory(memory.data(), memory.size());
    cards->fails = call;
    const bool keeps_memory = std::string(call) == "deregister memory";
    if (keeps_memory) {
      EXPECT_THROW(network.deregister(key), OsError);
    } else {
      network.deregister(key);
    }
    EXPECT_EQ(region_of_key(network.register_memory(memory.data(), 1)) == region_of_key(key),
              !keeps_memory);
    ::testing::internal::CaptureStderr();
    on_every_rank(2, [&](uint32_t rank) { worlds[rank].reset(); });
    const std::string told = ::testing::internal::GetCapturedStderr();
    const std::vector<std::string> names = names_of(cards->calls(0));
    const auto freed = std::ranges::find(names, "free"), closed = std::ranges::find(names, "close");
    ASSERT_NE(freed, names.end());
    const bool keeps_queue = call[0] == 't' || call[0] == 'D';
    EXPECT_EQ(closed < freed, keeps_queue);
    EXPECT_EQ(told.find("mlx5_0 keeps a queue to rank 1 until it is closed") != std::string::npos,
              keeps_queue)
        << told;
    EXPECT_EQ(told.find("mlx5_0 keeps region") != std::string::npos, keeps_memory) << told;
  }
}

/// Returns the error of making worlds of two ranks.
std::string refusal(const std::shared_ptr<SoftwareCards>& cards, const Change& change = {}) {
  try {
    (void)make_worlds(cards, 2, 2, 4, change);
    return "nothing";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(IbgdaRefusals, ACardThatLacksSomethingIsNamed) {
  const auto cards = std::make_shared<SoftwareCards>();
  cards->adds_in_host_order = false;
  EXPECT_THAT(refusal(cards), HasSubstr("mlx5_0 adds in big-endian order"));
  EXPECT_EQ(cards->calls(0).back().what, "close");
  cards->adds_in_host_order = true;
  EXPECT_THAT(refusal(cards, [](uint32_t, IbgdaOptions& options) { options.pkey = 0x1234; }),
              HasSubstr("network.pkey on rank 0: expected one of mlx5_0 port 2: 0xffff, 0x8001"));
  EXPECT_THAT(
      refusal(cards, [](uint32_t,
                        IbgdaOptions& options) { options.request.allowed = {{.name = "mlx5_4"}}; }),
      HasSubstr("mlx5_4 with an active port and a GID is missing; this host has mlx5_0 "
                "port 2"));
}

TEST(IbgdaRefusals, ACommandThatFailsUndoesTheOthers) {
  for (const char* const call : {"CREATE_MKEY", "CREATE_CQ", "CREATE_QP", "RST2INIT_QP",
                                 "INIT2RTR_QP", "RTR2RTS_QP", "umem", "registers", "memory"}) {
    const auto cards = std::make_shared<SoftwareCards>();
    cards->fails = call;
    EXPECT_THAT(refusal(cards), HasSubstr(std::string(call) + " on mlx5_0")) << call;
    EXPECT_EQ(cards->calls(0).back().what, "close") << call;
  }
}

TEST(IbgdaRefusals, TooLittleLockedMemoryIsNamedWithItsLimit) {
  const auto cards = std::make_shared<SoftwareCards>();
  cards->fails = "memory";
  EXPECT_THAT(refusal(cards), HasSubstr("ulimit -l on rank 0: expected room to lock"));
}

TEST(IbgdaRefusals, AHostWithoutThePlugInSaysSo) {
  EXPECT_THAT(refusal(std::make_shared<SoftwareCards>(),
                      [](uint32_t, IbgdaOptions& options) { options.driver = nullptr; }),
              HasSubstr("libtokenyard_ibgda.so"));
}

TEST(IbgdaRefusals, AWrongOptionIsNamedBeforeAnythingIsMade) {
  WorldOptions options;
  options.network.transport = "ibgda:mlx5_0:x";
  try {
    (void)connect_world({.port = 1, .rank = 0, .size = 1}, "host", options);
    ADD_FAILURE() << "it was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument, "network.transport");
  }
}

TEST(IbgdaRefusals, OtherQueuesOnARankAreNamed) {
  EXPECT_THAT(
      refusal(std::make_shared<SoftwareCards>(),
              [](uint32_t rank, IbgdaOptions& options) { options.queues_per_peer = 1 + rank; }),
      HasSubstr("queues"));
}

TEST(IbgdaOptions, ComeFromTheEnvironment) {
  const std::map<std::string, std::string> site = {
      {"TOKENYARD_NETWORK", "ibgda:mlx5_3:2"},    {"TOKENYARD_NETWORK_GID_INDEX", "5"},
      {"TOKENYARD_NETWORK_TRAFFIC_CLASS", "106"}, {"TOKENYARD_NETWORK_SERVICE_LEVEL", "3"},
      {"TOKENYARD_NETWORK_PKEY", "0x8001"},       {"TOKENYARD_NETWORK_MTU", "2048"},
      {"TOKENYARD_NETWORK_RETRY_COUNT", "0"},     {"TOKENYARD_NETWORK_RETRY_TIMEOUT", "14"},
      {"TOKENYARD_NETWORK_QUEUE_DEPTH", "100"}};
  for (const auto& [name, value] : site) setenv(name.c_str(), value.c_str(), 1);
  EXPECT_TRUE(ibgda::asks_for_ibgda({}));
  EXPECT_FALSE(ibgda::asks_for_ibgda({.transport = "tcp"}));
  const IbgdaOptions options = ibgda::ibgda_options_of({.queues = 9});
  ASSERT_EQ(options.request.allowed.size(), 1u);
  EXPECT_EQ(options.request.allowed[0].name, "mlx5_3");
  EXPECT_EQ(options.request.allowed[0].port, 2);
  EXPECT_EQ(options.request.gid_index, 5u);
  EXPECT_EQ(options.traffic_class, 106);
  EXPECT_EQ(options.service_level, 3);
  EXPECT_EQ(options.pkey, 0x8001);
  EXPECT_EQ(options.mtu, 4);
  EXPECT_EQ(options.retries, 0);
  EXPECT_EQ(options.ack_timeout, 14);
  EXPECT_EQ(options.queues_per_peer, 9u);
  EXPECT_EQ(options.slots, 128u) << "the next power of 2";
  EXPECT_EQ(
      ibgda::options_text(),
      "mlx5_3 port 2 takes requests from kernels (ibgda), of TOKENYARD_NETWORK; 4 queues of 128 "
      "entries per peer");
  const auto refused = [](const char* name, const char* value) {
    setenv(name, value, 1);
    std::string told = "nothing";
    try {
      (void)ibgda::ibgda_options_of({});
    } catch (const InvalidArgument& error) {
      told = error.argument;
    }
    unsetenv(name);
    return told;
  };
  for (const auto& [name, value] :
       std::map<const char*, const char*>{{"TOKENYARD_NETWORK", "ibgda:mlx5_0:x"},
                                          {"TOKENYARD_NETWORK_GID_INDEX", "256"},
                                          {"TOKENYARD_NETWORK_TRAFFIC_CLASS", "256"},
                                          {"TOKENYARD_NETWORK_SERVICE_LEVEL", "16"},
                                          {"TOKENYARD_NETWORK_PKEY", "0x18001"},
                                          {"TOKENYARD_NETWORK_MTU", "9000"},
                                          {"TOKENYARD_NETWORK_RETRY_COUNT", "8"},
                                          {"TOKENYARD_NETWORK_RETRY_TIMEOUT", "0"},
                                          {"TOKENYARD_NETWORK_QUEUE_DEPTH", "32769"},
                                          {"TOKENYARD_NETWORK_INTERFACES", "mlx5_1"},
                                          {"TOKENYARD_NETWORK_PORTS", "5000"},
                                          {"TOKENYARD_NETWORK_CONNECTIONS", "2"}}) {
    EXPECT_EQ(refused(name, value), name);
  }
  for (const auto& [name, value] : site) unsetenv(name.c_str());
}

TEST(IbgdaOptions, OptionsComeBeforeTheEnvironment) {
  setenv("TOKENYARD_NETWORK_GID_INDEX", "5", 1);
  setenv("TOKENYARD_NETWORK_INTERFACES", "0=mlx5_0,1=mlx5_1:2,mlx5_9", 1);
  const IbgdaOptions options = ibgda::ibgda_options_of({.transport = "ibgda",
                                                        .gid_index = 0,
                                                        .traffic_class = 104,
                                                        .service_level = 2,
                                                        .pkey = "8001",
                                                        .mtu = 1024,
                                                        .retry_count = 0,
                                                        .retry_timeout = 9},
                                                       1);
  unsetenv("TOKENYARD_NETWORK_GID_INDEX");
  unsetenv("TOKENYARD_NETWORK_INTERFACES");
  EXPECT_EQ(options.request.gid_index, 0u);
  ASSERT_EQ(options.request.allowed.size(), 2u) << "one of GPU 0 does not count";
  EXPECT_EQ(options.request.allowed[0].name, "mlx5_1");
  EXPECT_EQ(options.request.allowed[0].port, 2);
  EXPECT_EQ(options.request.allowed[1].name, "mlx5_9");
  EXPECT_EQ(options.traffic_class, 104);
  EXPECT_EQ(options.service_level, 2);
  EXPECT_EQ(options.pkey, 0x8001);
  EXPECT_EQ(options.mtu, 3);
  EXPECT_EQ(options.retries, 0);
  EXPECT_EQ(options.ack_timeout, 9);
  const auto refused = [](const NetworkOptions& wrong) {
    try {
      (void)ibgda::ibgda_options_of(wrong);
    } catch (const InvalidArgument& error) {
      return error.argument;
    }
    return std::string("nothing");
  };
  EXPECT_EQ(refused({.ports = "5000"}), "network.ports");
  EXPECT_EQ(refused({.connections = 2}), "network.connections");
  EXPECT_EQ(refused({.interfaces = "1=mlx5_0"}), "network.interfaces") << "none for GPU 0";
  EXPECT_EQ(refused({.gid_index = 256}), "network.gid_index");
  EXPECT_EQ(refused({.mtu = 1500}), "network.mtu");
  EXPECT_EQ(refused({.pkey = "none"}), "network.pkey");
  EXPECT_EQ(refused({.retry_timeout = 32}), "network.retry_timeout");
}

#ifdef TOKENYARD_IBGDA
TEST(IbgdaPlugin, ListsTheCardsOfThisHost) {
  const auto driver = ibgda::load_rdma_driver(TOKENYARD_IBGDA);
  for (const ibgda::DeviceFacts& device : driver->devices()) EXPECT_NE(device.name, "");
  EXPECT_THROW((void)driver->open("nocard"), Unsupported);
}
#endif

TEST(IbgdaPlugin, AnotherLibraryIsRefusedByName) {
  try {
    (void)ibgda::load_rdma_driver("libc.so.6");
    ADD_FAILURE() << "it was loaded";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("libc.so.6"));
  }
}

}  // namespace
}  // namespace tokenyard::testing
