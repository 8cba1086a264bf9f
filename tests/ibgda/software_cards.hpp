/// Answers the calls of ibgda/rdma_driver.hpp without a card: it records each, refuses commands
/// that make no sense, and backs queue pairs that are brought into service by the software card,
/// which executes the entries that kernels write (fabric/network/mlx5_front.hpp), one thread each.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fabric/abort_flag.hpp"
#include "fabric/network/nic.hpp"
#include "ibgda/prm.hpp"
#include "ibgda/rdma_driver.hpp"
#include "simt/host_accelerator.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::ibgda::testing {

/// A call, and the bytes of its command.
struct Recorded {
  std::string what;
  std::vector<std::byte> bytes = {};
};

/// A queue pair in service.
class SoftwareQueue {
 public:
  SoftwareQueue(const Mlx5Pair& view, std::byte* own_table, std::byte* peer_table, uint64_t seed)
      : view_(view),
        stop_(accelerator_),
        record_(accelerator_, stop_),
        entries_(QueuePair::kSlots),
        stage_(NicParams::kStageBytes) {
    pairs_[0] = &pair_;
    peer_tables_[0] = {peer_table, 1};
    params_ = {.wait_context = record_.wait_context(std::chrono::nanoseconds::max()),
               .seed = seed,
               .nap_ns_max = 20'000,
               .stall_ns_max = 0,
               .latency_ns = 0,
               .fs_per_byte = 0,
               .link_free_ns = &link_free_ns_,
               .rank = 0,
               .dies_after = 0,
               .queues = 1,
               .pairs = pairs_,
               .mlx5_pairs = &view_,
               .peer_tables = peer_tables_,
               .table = {own_table, 1},
               .gone = &gone_,
               .refused = nullptr,
               .entries = entries_.data(),
               .stages = stage_.data()};
    thread_ = std::jthread([this] {
      simt::HostAccelerator card([] {});
      launch(card, nic_kernel, {.blocks = 1, .warps = 1}, Stream{}, params_);
    });
  }
  /// Lands what it has accepted.
  ~SoftwareQueue() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const auto settled = [&] {
      const uint32_t record = mlx5::big_endian(accelerator_.read_flag(view_.record));
      return (accelerator_.read_flag(&pair_.settled) & 0xffff) == record;
    };
    while (!settled() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stop_.cancel();
  }
  SoftwareQueue(const SoftwareQueue&) = delete;
  SoftwareQueue& operator=(const SoftwareQueue&) = delete;

  /// Its peer does not answer any more.
  void lose_peer() { accelerator_.write_flag(&gone_, kLeft); }

 private:
  simt::HostAccelerator accelerator_{[] {}};
  const Mlx5Pair view_;
  AbortFlag stop_;
  ErrorRecord record_;
  QueuePair pair_{};
  QueuePair* pairs_[1];
  RegionTable peer_tables_[1];
  AbortWord gone_ = kNoAbort;
  uint64_t link_free_ns_ = 0;
  std::vector<NicEntry> entries_;
  std::vector<std::byte> stage_;
  NicParams params_{};
  std::jthread thread_;
};

class SoftwareDevice;

/// The network between cards, and the record of all calls.
class SoftwareCards : public std::enable_shared_from_this<SoftwareCards> {
 public:
  static constexpr size_t kPage = 4096;  ///< of its registers
  bool ethernet = false;
  bool adds_in_host_order = true;
  std::string fails = {};  ///< a call that the driver refuses
  /// [ranks] logarithms of the reads under way that its card can ask for, and serve
  std::map<uint32_t, std::pair<uint8_t, uint8_t>> log_reads = {};

  /// Returns the driver of the host on which a rank is.
  std::shared_ptr<RdmaDriver> driver(uint32_t rank);
  DeviceFacts facts(uint32_t rank) const {
    GidFacts gid{.index = 3,
                 .kind = ethernet ? GidFacts::Kind::roce_v2 : GidFacts::Kind::infiniband,
                 .gid = {0xfd, 0, 0, 7}};
    gid.gid[15] = static_cast<uint8_t>(rank + 1);
    PortFacts port{.number = 2,
                   .state = "active",
                   .ethernet = ethernet,
                   .lid = static_cast<uint16_t>(ethernet ? 0 : 0x40 + rank),
                   .mtu = 5,
                   .gigabits_per_s = 400,
                   .gids = {gid},
                   .pkeys = {0xffff, 0x8001}};
    return {.name = "mlx5_0", .pci = "/sys/devices/pci0/card", .is_mlx5 = true, .ports = {port}};
  }
  static std::array<uint8_t, 6> mac_of(const Gid& gid) { return {2, 0, 0, 0, 0, gid[15]}; }

  void record(uint32_t rank, const std::string& what, std::span<const std::byte> bytes = {}) {
    const std::lock_guard lock(mutex_);
    calls_[rank].push_back({what, {bytes.begin(), bytes.end()}});
  }
  std::vector<Recorded> calls(uint32_t rank) {
    const std::lock_guard lock(mutex_);
    return calls_[rank];
  }
  /// Drops all packets between two ranks from now on.
  void partition(uint32_t one, uint32_t other);
  uint32_t draw() {
    const std::lock_guard lock(mutex_);
    return ++number_;
  }

 private:
  friend class SoftwareDevice;
  /// Returns a table of regions, which cards may read as long as there is a network.
  std::byte* make_table() {
    const std::lock_guard lock(mutex_);
    tables_.push_back(std::make_unique<std::vector<uint64_t>>(RegionTable::bytes(1) / 8));
    return reinterpret_cast<std::byte*>(tables_.back()->data());
  }

  /// A queue pair, in service or not.
  struct Pair {
    SoftwareDevice* device;
    uint32_t state = 0;  ///< 0 reset, 1 init, 2 RTR, 3 RTS, 6 error
    uint32_t peer = 0;
    Mlx5Pair view{};
    std::unique_ptr<SoftwareQueue> queue = {};
  };

  std::mutex mutex_;
  std::map<uint32_t, std::vector<Recorded>> calls_;
  uint32_t number_ = 0x100;
  std::map<uint32_t, std::shared_ptr<Pair>> pairs_;  ///< by number
  std::vector<std::unique_ptr<std::vector<uint64_t>>> tables_;
};

class SoftwareDevice final : public RdmaDevice {
 public:
  SoftwareDevice(std::shared_ptr<SoftwareCards> cards, uint32_t rank)
      : cards_(std::move(cards)), rank_(rank), table_(cards_->make_table()) {}
  ~SoftwareDevice() override {
    note("close");
    if (!living_.empty()) fmt::print(stderr, "a card was closed before all was given back\n");
    if (!living_.empty()) std::terminate();
  }

  uint32_t rank() const { return rank_; }
  uint32_t protection_domain() override { return 0x2000 + rank_; }
  uint32_t event_queue() override { return 5; }

  int query(std::span<const std::byte> in, std::span<std::byte> out) override {
    using prm::Capabilities;
    note("QUERY_HCA_CAP", in);
    const uint64_t group = prm::get(in, prm::kModifier);
    if (group == Capabilities::kGeneral * 2 + 1) {
      set(out, Capabilities::kAtomics, 1);
      set(out, Capabilities::kBlueFlame, 1);
      set(out, Capabilities::kLogBlueFlameBytes, 9);
      set(out, Capabilities::kLogKlmsMax, 4);
      const auto limits = cards_->log_reads.find(rank_);
      const bool is_given = limits != cards_->log_reads.end();
      set(out, Capabilities::kLogReadsAsked, is_given ? limits->second.first : 4);
      set(out, Capabilities::kLogReadsServed, is_given ? limits->second.second : 9);
    } else if (group == Capabilities::kAtomic * 2 + 1) {
      set(out, Capabilities::kHostOrder, cards_->adds_in_host_order ? 1 : 0);
      set(out, Capabilities::kOperations, 0xf);
      set(out, Capabilities::kSizes, 0x8);
    } else {
      return refuse(out, "a group of capabilities");
    }
    return 0;
  }

  int create(std::span<const std::byte> in, std::span<std::byte> out, Handle& made) override {
    switch (prm::get(in, {0, 16})) {
      case prm::kCreateKey:
        if (!notes("CREATE_MKEY", in)) return refuse(out, "as a test wants it");
        return create_key(in, out, made);
      case prm::kCreateCompletionQueue:
        if (!notes("CREATE_CQ", in)) return refuse(out, "as a test wants it");
        return create_completion_queue(in, out, made);
      case prm::kCreateQueuePair:
        if (!notes("CREATE_QP", in)) return refuse(out, "as a test wants it");
        return create_queue_pair(in, out, made);
      default:
        return refuse(out, "a CREATE command");
    }
  }

  int modify(Handle object, std::span<const std::byte> in, std::span<std::byte> out) override {
    const auto number = static_cast<uint32_t>(prm::get(in, prm::kQueuePair));
    if (number != object) return refuse(out, "the object's number");
    switch (prm::get(in, {0, 16})) {
      case prm::kResetToInit:
        if (!notes("RST2INIT_QP", in)) return refuse(out, "as a test wants it");
        return to_init(number, in, out);
      case prm::kInitToReceive:
        if (!notes("INIT2RTR_QP", in)) return refuse(out, "as a test wants it");
        return to_receive(number, in, out);
      case prm::kReceiveToSend:
        if (!notes("RTR2RTS_QP", in)) return refuse(out, "as a test wants it");
        return to_send(number, out);
      case prm::kToError:
        if (!notes("2ERR_QP", in)) return refuse(out, "as a test wants it");
        return to_error(number);
      default:
        return refuse(out, "a command");
    }
  }

  int destroy(Handle object) override {
    const auto number = static_cast<uint32_t>(object);
    if (keeps("DESTROY", number)) return EBUSY;
    const std::string kind = end("DESTROY", number);
    if (kind == "key") close_key(keys_.extract(number).mapped());
    if (kind == "pair") destroy_pair(number);
    return 0;
  }

  QueueMemory lend(void* memory, size_t bytes) override {
    const uint32_t number = begin("umem");
    if (reinterpret_cast<uintptr_t>(memory) % 4096 != 0) throw std::logic_error("no page begins");
    lent_[number] = {static_cast<std::byte*>(memory), bytes};
    return {.handle = number, .number = number};
  }
  void take_back(const QueueMemory& memory) override {
    const auto number = static_cast<uint32_t>(memory.handle);
    if (keeps("take back", number)) throw OsError("umem on mlx5_0", EBUSY, "it is in use");
    end("take back", number);
  }
  RegisteredMemory register_memory(void* memory, size_t bytes) override {
    const uint32_t number = begin("memory");
    registered_[number << 8] = {static_cast<std::byte*>(memory), bytes};
    return {.handle = number, .key = number << 8};
  }
  RegisteredMemory register_dma_buf(int, uint64_t, size_t bytes, uint64_t address) override {
    note("dma-buf");
    return register_memory(reinterpret_cast<void*>(address), bytes);
  }
  void deregister(const RegisteredMemory& memory) override {
    const auto number = static_cast<uint32_t>(memory.handle);
    if (keeps("deregister", number)) throw OsError("memory on mlx5_0", EBUSY, "it is in use");
    end("deregister", number);
    registered_.erase(memory.key);
  }
  RegisterPage map_registers() override {
    registers_ = std::make_unique<MappedPage>();
    const uint32_t number = begin("registers");
    return {.handle = number,
            .number = number,
            .blue_flame = reinterpret_cast<std::byte*>(registers_.get())};
  }
  void unmap(const RegisterPage& page) override {
    end("unmap", static_cast<uint32_t>(page.handle));
  }
  EthernetRoute route(const EthernetPath& path) override {
    note("route");
    return {.mac = SoftwareCards::mac_of(path.target), .udp_source_port = 0xc123};
  }

 private:
  struct Memory {
    std::byte* base;
    size_t bytes;
  };

  void note(const std::string& what, std::span<const std::byte> bytes = {}) {
    cards_->record(rank_, what, bytes);
  }
  /// Returns whether the driver takes the command.
  bool notes(const std::string& what, std::span<const std::byte> bytes) {
    note(what, bytes);
    return what != cards_->fails;
  }
  uint32_t begin(const std::string& kind) {
    note(kind);
    if (kind == cards_->fails) throw OsError(kind + " on mlx5_0", ENOMEM, "it fails");
    const uint32_t number = cards_->draw();
    living_[number] = kind;
    return number;
  }
  /// Returns whether the driver does not obey; the thing then lives as long as the card.
  bool keeps(const std::string& what, uint32_t number) {
    const std::string call = what + " " + living_.at(number);
    if (call != cards_->fails) return false;
    note(call + " fails");
    if (living_[number] == "pair") destroy_pair(number);
    living_.erase(number);
    return true;
  }
  std::string end(const std::string& what, uint32_t number) {
    const std::string kind = living_.at(number);
    living_.erase(number);
    cards_->record(rank_, what + " " + kind);
    return kind;
  }
  static void set(std::span<std::byte> bytes, prm::Field field, uint64_t value) {
    for (uint32_t bit = field.at + field.bits; bit-- != field.at; value >>= 1)
      bytes[bit / 8] |= static_cast<std::byte>((value & 1) << (7 - bit % 8));
  }
  static int refuse(std::span<std::byte> out, const std::string& why) {
    fmt::print(stderr, "software card: no sense: {}\n", why);
    set(out, prm::kStatus, 0x3);
    set(out, prm::kSyndrome, 0x123456);
    return EREMOTEIO;
  }
  uint32_t made(std::span<std::byte> out, const std::string& kind, Handle& handle) {
    const uint32_t number = cards_->draw();
    living_[number] = kind;
    handle = number;
    set(out, prm::kMade, number);
    return number;
  }
  RegionTable table() { return {table_, 1}; }

  int create_key(std::span<const std::byte> in, std::span<std::byte> out, Handle& handle) {
    using prm::Key;
    const uint64_t bytes = prm::get(in, Key::kBytes);
    const auto number = static_cast<uint32_t>(prm::get(in, Key::kLowByte));
    if (prm::get(in, Key::kMode) != Key::kKlms || prm::get(in, Key::kStart) != 0 ||
        prm::get(in, Key::kDomain) != protection_domain() || number >= kNetworkRegions)
      return refuse(out, "a key");
    std::byte* base = nullptr;
    uint64_t covered = 0;
    for (uint64_t entry = 0; covered < bytes && entry < prm::get(in, Key::kOctwords); ++entry) {
      const auto at = static_cast<uint32_t>(Key::kKlm + entry * Key::kKlmBits);
      auto* const begin = reinterpret_cast<std::byte*>(prm::get(in, Key::kKlmAddress.in(at)));
      const auto memory =
          registered_.find(static_cast<uint32_t>(prm::get(in, Key::kKlmKey.in(at))));
      const uint64_t part = prm::get(in, Key::kKlmBytes.in(at));
      if (memory == registered_.end() || begin < memory->second.base ||
          begin + part > memory->second.base + memory->second.bytes)
        return refuse(out, "a range of a key");
      if (base == nullptr) base = begin;
      if (begin != base + covered) return refuse(out, "ranges with a gap");
      covered += part;
    }
    if (covered != bytes) return refuse(out, "the length of a key");
    const uint32_t index = made(out, "key", handle);
    keys_[index] = number;
    const Peer<NetworkRegion> region = table().region(number);
    *region.address() = {base, bytes};
    std::atomic_ref<uint64_t> gate(*table().gate(number, 0).address());
    const uint64_t before = gate.load() & 0xffffffff;
    gate.fetch_add(uint64_t{index << 8 | number} - before);
    return 0;
  }
  void close_key(uint32_t number) {
    std::atomic_ref<uint64_t> gate(*table().gate(number, 0).address());
    // A card without queue pairs answers nobody.
    const uint64_t closed = has_pairs() ? 0 : kClosedKey;
    gate.fetch_add(closed - (gate.load() & 0xffffffff));
    while (gate.load() >= kGateUser) std::this_thread::yield();
  }
  bool has_pairs() const {
    return std::ranges::any_of(living_, [](const auto& each) { return each.second == "pair"; });
  }

  int create_completion_queue(std::span<const std::byte> in, std::span<std::byte> out,
                              Handle& handle) {
    using prm::CompletionQueue;
    const auto memory = lent_.find(static_cast<uint32_t>(prm::get(in, CompletionQueue::kMemory)));
    const uint64_t offset = prm::get(in, CompletionQueue::kMemoryOffset);
    const uint64_t bytes = sizeof(mlx5::Completion) << prm::get(in, CompletionQueue::kLogEntries);
    if (memory == lent_.end() || offset + bytes > memory->second.bytes ||
        prm::get(in, CompletionQueue::kCollapsed) != 1 ||
        prm::get(in, CompletionQueue::kOverrunIgnored) != 1 ||
        prm::get(in, CompletionQueue::kMemoryGiven) != 1)
      return refuse(out, "a completion queue");
    const uint32_t number = made(out, "completions", handle);
    completions_[number] = reinterpret_cast<mlx5::Completion*>(memory->second.base + offset);
    return 0;
  }

  int create_queue_pair(std::span<const std::byte> in, std::span<std::byte> out, Handle& handle) {
    using prm::QueuePair;
    const auto memory = lent_.find(static_cast<uint32_t>(prm::get(in, QueuePair::kMemory)));
    const auto completion =
        completions_.find(static_cast<uint32_t>(prm::get(in, QueuePair::kSendCompletions)));
    const uint32_t slots = 1u << prm::get(in, QueuePair::kLogSends);
    const uint64_t record = prm::get(in, QueuePair::kRecordOffset);
    const uint64_t blocks = prm::get(in, QueuePair::kMemoryOffset);
    const bool makes_sense =
        memory != lent_.end() && completion != completions_.end() &&
        prm::get(in, QueuePair::kRecordMemory) == memory->first &&
        record + sizeof(mlx5::DoorbellRecord) <= memory->second.bytes &&
        blocks + slots * sizeof(mlx5::Block) <= memory->second.bytes &&
        prm::get(in, QueuePair::kReceiveQueue) == QueuePair::kNoReceiveQueue &&
        prm::get(in, QueuePair::kService) == 0 && prm::get(in, QueuePair::kRecordGiven) == 1 &&
        prm::get(in, QueuePair::kMemoryGiven) == 1 &&
        prm::get(in, QueuePair::kDomain) == protection_domain() &&
        living_[static_cast<uint32_t>(prm::get(in, QueuePair::kRegisters))] == "registers";
    if (!makes_sense) return refuse(out, "a queue pair");
    const uint32_t number = made(out, "pair", handle);
    auto* const records = reinterpret_cast<mlx5::DoorbellRecord*>(memory->second.base + record);
    auto pair = std::make_shared<SoftwareCards::Pair>();
    pair->device = this;
    pair->view = {.blocks = reinterpret_cast<mlx5::Block*>(memory->second.base + blocks),
                  .record = &records->send,
                  .blue_flame = &registers_->blue_flame,
                  .completion = completion->second,
                  .slots = slots,
                  .number = number};
    const std::lock_guard lock(cards_->mutex_);
    cards_->pairs_[number] = pair;
    return 0;
  }

  int to_init(uint32_t number, std::span<const std::byte> in, std::span<std::byte> out) {
    using prm::QueuePair;
    const std::lock_guard lock(cards_->mutex_);
    SoftwareCards::Pair& pair = *cards_->pairs_.at(number);
    if (pair.state != 0 || prm::get(in, QueuePair::kPort) != 2 ||
        prm::get(in, QueuePair::kRemoteWrite) != 1 || prm::get(in, QueuePair::kRemoteAtomic) != 1)
      return refuse(out, "reset to init");
    pair.state = 1;
    return 0;
  }
  int to_receive(uint32_t number, std::span<const std::byte> in, std::span<std::byte> out) {
    using prm::QueuePair;
    const std::lock_guard lock(cards_->mutex_);
    SoftwareCards::Pair& pair = *cards_->pairs_.at(number);
    const auto peer = static_cast<uint32_t>(prm::get(in, QueuePair::kPeer));
    if (pair.state != 1 || !cards_->pairs_.contains(peer)) return refuse(out, "init to RTR");
    const DeviceFacts there = cards_->facts(cards_->pairs_[peer]->device->rank_);
    const Gid& gid = there.ports[0].gids[0].gid;
    const uint64_t mac = prm::get(in, QueuePair::kMacHigh) << 32 | prm::get(in, QueuePair::kMacLow);
    const bool arrives = cards_->ethernet
                             ? mac == (uint64_t{2} << 40 | gid[15]) &&
                                   prm::get(in, {QueuePair::kPeerGid + 120, 8}) == gid[15] &&
                                   prm::get(in, QueuePair::kUdpSourcePort) == 0xc123
                             : prm::get(in, QueuePair::kPeerLid) == there.ports[0].lid;
    if (!arrives || prm::get(in, QueuePair::kRemoteAtomic) != 1) return refuse(out, "an address");
    pair.peer = peer;
    pair.state = 2;
    return 0;
  }
  int to_send(uint32_t number, std::span<std::byte> out) {
    const std::lock_guard lock(cards_->mutex_);
    SoftwareCards::Pair& pair = *cards_->pairs_.at(number);
    if (pair.state != 2) return refuse(out, "RTR to RTS");
    pair.state = 3;
    SoftwareDevice& there = *cards_->pairs_.at(pair.peer)->device;
    pair.queue = std::make_unique<SoftwareQueue>(pair.view, table().memory, there.table().memory,
                                                 number * 0x9e3779b97f4a7c15u);
    return 0;
  }
  int to_error(uint32_t number) {
    const std::lock_guard lock(cards_->mutex_);
    SoftwareCards::Pair& pair = *cards_->pairs_.at(number);
    pair.state = 6;
    if (pair.queue) pair.queue->lose_peer();
    return 0;
  }
  void destroy_pair(uint32_t number) {
    std::shared_ptr<SoftwareCards::Pair> pair;
    {
      const std::lock_guard lock(cards_->mutex_);
      pair = cards_->pairs_.extract(number).mapped();
      for (auto& [other, peer] : cards_->pairs_)
        if (peer->peer == number && peer->queue) peer->queue->lose_peer();
    }
    pair->queue.reset();
  }

  const std::shared_ptr<SoftwareCards> cards_;
  const uint32_t rank_;
  std::map<uint32_t, std::string> living_;  ///< kinds, by number
  std::map<uint32_t, Memory> lent_, registered_;
  std::map<uint32_t, uint32_t> keys_;  ///< numbers of regions, by index
  std::map<uint32_t, mlx5::Completion*> completions_;
  /// A GPU maps whole pages.
  struct alignas(SoftwareCards::kPage) MappedPage {
    mlx5::BlueFlame blue_flame;
  };
  std::unique_ptr<MappedPage> registers_;
  std::byte* const table_;
};

class SoftwareDriver final : public RdmaDriver {
 public:
  SoftwareDriver(std::shared_ptr<SoftwareCards> cards, uint32_t rank)
      : cards_(std::move(cards)), rank_(rank) {}
  std::vector<DeviceFacts> devices() override { return {cards_->facts(rank_)}; }
  std::unique_ptr<RdmaDevice> open(const std::string& name) override {
    cards_->record(rank_, "open " + name);
    return std::make_unique<SoftwareDevice>(cards_, rank_);
  }

 private:
  const std::shared_ptr<SoftwareCards> cards_;
  const uint32_t rank_;
};

inline void SoftwareCards::partition(uint32_t one, uint32_t other) {
  const std::lock_guard lock(mutex_);
  for (auto& [number, pair] : pairs_) {
    const auto peer = pairs_.find(pair->peer);
    if (!pair->queue || peer == pairs_.end()) continue;
    const uint32_t here = pair->device->rank(), there = peer->second->device->rank();
    if ((here == one && there == other) || (here == other && there == one))
      pair->queue->lose_peer();
  }
}

inline std::shared_ptr<RdmaDriver> SoftwareCards::driver(uint32_t rank) {
  return std::make_shared<SoftwareDriver>(shared_from_this(), rank);
}

}  // namespace tokenyard::ibgda::testing
