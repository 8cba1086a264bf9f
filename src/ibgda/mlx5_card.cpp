#include "ibgda/mlx5_card.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>

#include "fabric/network/locked_memory.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::ibgda {

namespace {

/// Throws for a command that has failed, with the card's reason if it is the card's.
void require_done(int error, std::span<const std::byte> answer, const std::string& card,
                  const char* name) {
  const uint64_t status = prm::get(answer, prm::kStatus);
  if (error == 0 && status == 0) return;
  std::string text = error != 0 ? std::strerror(error) : "the card refused";
  if (status != 0) {
    text += fmt::format(" (the card's status {:#x}, syndrome {:#x})", status,
                        prm::get(answer, prm::kSyndrome));
  }
  throw OsError(fmt::format("{} on {}", name, card), error, text);
}

/// A card may wait for up to so many times the timeout that it was given.
constexpr uint32_t kTimeoutSlack = 4;

/// Returns the longest timeout with which all tries together take no longer than `retry_time`.
uint8_t ack_timeout_for(std::chrono::nanoseconds retry_time, uint32_t tries) {
  uint8_t exponent = 1;
  while (exponent < 31 && std::chrono::nanoseconds(kTimeoutSlack * tries *
                                                   (int64_t{4096} << (exponent + 1))) <= retry_time)
    ++exponent;
  return exponent;
}

/// Makes a call that locks so many bytes of memory.
template <class Call>
void locking(size_t bytes, const Call& call) {
  try {
    call();
  } catch (const OsError& error) {
    if (error.code != ENOMEM) throw;
    refuse_to_lock(error.call, bytes);
  }
}

}  // namespace

void release_object(RdmaDevice& device, const Handle& object) {
  const int error = device.destroy(object);
  if (error != 0) throw OsError("end of a card's object", error, std::strerror(error));
}

void CardRegion::close() {
  std::string why = key_object.release();
  // Without the registration behind it a key reaches nothing.
  const std::string memory_why = memory.release();
  if (why.empty()) why = memory_why;
  if (!why.empty()) throw OsError("a card keeps a region", EBUSY, why);
  key = 0;
}

std::string CardQueue::close() {
  std::string errors;
  for (const std::string& why : {pair.release(), completions.release(), memory.release()})
    if (!why.empty()) errors += (errors.empty() ? "" : "; ") + why;
  return errors;
}

QueueLayout::QueueLayout(uint32_t slots) {
  const auto pages = [](size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; };
  blocks = 0;
  completions = pages(slots * sizeof(mlx5::Block));
  pair_record = completions + pages(slots * sizeof(mlx5::Completion));
  completion_record = pair_record + 64;
  bytes = pair_record + kPage;
}

Mlx5Card::Mlx5Card(std::unique_ptr<RdmaDevice> device, DeviceChoice choice,
                   const IbgdaOptions& options, std::chrono::nanoseconds retry_time)
    : device_(std::move(device)), choice_(std::move(choice)) {
  const PortFacts& port = choice_.port;
  if (port.ethernet && options.service_level > 7)
    throw InvalidArgument(options.names.service_level, "0 to 7 on Ethernet",
                          fmt::format("{}", options.service_level));
  if (options.mtu > port.mtu)
    throw InvalidArgument(options.names.mtu,
                          fmt::format("at most {}, that of {} port {}", 128u << port.mtu,
                                      choice_.device.name, port.number),
                          fmt::format("{}", 128u << options.mtu));
  path_ = {.port = port.number,
           .pkey_index = pkey_index(options),
           .gid_index = static_cast<uint8_t>(choice_.gid.index),
           .traffic_class = options.traffic_class,
           .service_level = options.service_level,
           .mtu = options.mtu != 0 ? options.mtu : port.mtu,
           .retries = options.retries,
           .ack_timeout =
               options.ack_timeout.value_or(ack_timeout_for(retry_time, options.retries + 1u)),
           .log_reads_asked = 0,
           .log_reads_served = 0,
           .ethernet = port.ethernet};
  check_capabilities();
  registers_ = CardRegisters(*device_, device_->map_registers());
}

uint16_t Mlx5Card::pkey_index(const IbgdaOptions& options) const {
  const std::optional<uint16_t>& pkey = options.pkey;
  if (!pkey) return 0;
  const std::vector<uint16_t>& keys = choice_.port.pkeys;
  // The highest bit says whether this port is a full member of the partition.
  const auto at =
      std::ranges::find_if(keys, [&](uint16_t key) { return (key & 0x7fff) == (*pkey & 0x7fff); });
  if (at == keys.end()) {
    throw InvalidArgument(options.names.pkey,
                          fmt::format("one of {} port {}: {:#06x}", choice_.device.name,
                                      choice_.port.number, fmt::join(keys, ", ")),
                          fmt::format("{:#06x}", *pkey));
  }
  return static_cast<uint16_t>(at - keys.begin());
}

void Mlx5Card::check_capabilities() {
  using prm::Capabilities;
  const auto query = [&](uint32_t group) {
    prm::Command command(prm::kQueryCapabilities, Capabilities::kBytes);
    command.set(prm::kModifier, group * 2 + 1);
    std::vector<std::byte> answer(Capabilities::kAnswerBytes);
    const int error = device_->query(command.bytes(), answer);
    require_done(error, answer, choice_.device.name, "QUERY_HCA_CAP");
    return answer;
  };
  const auto require = [&](bool has, const char* lacks) {
    if (!has) throw Unsupported("network \"ibgda\"", choice_.device.name + " " + lacks);
  };
  const std::vector<std::byte> general = query(Capabilities::kGeneral);
  require(prm::get(general, Capabilities::kAtomics) != 0, "has no atomic operations");
  require(prm::get(general, Capabilities::kBlueFlame) != 0 &&
              prm::get(general, Capabilities::kLogBlueFlameBytes) ==
                  std::bit_width(sizeof(mlx5::BlueFlame)) - 1,
          "has no BlueFlame registers of two halves of 256 bytes");
  const std::vector<std::byte> atomic = query(Capabilities::kAtomic);
  require((prm::get(atomic, Capabilities::kOperations) & Capabilities::kMaskedFetchAdd) != 0 &&
              (prm::get(atomic, Capabilities::kSizes) & Capabilities::kEightBytes) != 0,
          "has no masked fetch-add of 8 bytes");
  require(prm::get(atomic, Capabilities::kHostOrder) == 1,
          "adds in big-endian order; its driver must set it to the host's");
  const auto log_of = [&](prm::Field field) {
    return static_cast<uint8_t>(std::min<uint64_t>(kLogReadsMax, prm::get(general, field)));
  };
  path_.log_reads_asked = log_of(Capabilities::kLogReadsAsked);
  path_.log_reads_served = log_of(Capabilities::kLogReadsServed);
  klms_max_ = uint64_t{1} << prm::get(general, Capabilities::kLogKlmsMax);
}

CardObject Mlx5Card::create(const prm::Command& command, const char* name, uint32_t& number) {
  std::array<std::byte, prm::kAnswerBytes> answer{};
  Handle made = 0;
  const int error = device_->create(command.bytes(), answer, made);
  require_done(error, answer, choice_.device.name, name);
  number = static_cast<uint32_t>(prm::get(answer, prm::kMade));
  return {*device_, made};
}

void Mlx5Card::modify(const CardObject& object, const prm::Command& command, const char* name) {
  std::array<std::byte, prm::kAnswerBytes> answer{};
  const int error = device_->modify(object.get(), command.bytes(), answer);
  require_done(error, answer, choice_.device.name, name);
}

CardRegion Mlx5Card::make_region(uint32_t number, std::byte* base, size_t bytes,
                                 const std::optional<DmaBuf>& dma_buf) {
  if (klms_of(bytes) > klms_max_) {
    throw Unsupported("network \"ibgda\"",
                      fmt::format("{} registers at most {} bytes at once, and {} are asked for",
                                  choice_.device.name, klms_max_ * kKlmBytesMax, bytes));
  }
  const auto address = reinterpret_cast<uintptr_t>(base);
  CardRegion region;
  if (dma_buf) {
    region.memory = CardMemory(
        *device_,
        device_->register_dma_buf(dma_buf->descriptor.native(), dma_buf->offset, bytes, address));
  } else {
    locking(bytes,
            [&] { region.memory = CardMemory(*device_, device_->register_memory(base, bytes)); });
  }
  uint32_t index = 0;
  region.key_object = create(create_key({.domain = device_->protection_domain(),
                                         .low_byte = static_cast<uint8_t>(number),
                                         .memory = region.memory.get(),
                                         .address = address,
                                         .bytes = bytes}),
                             "CREATE_MKEY", index);
  region.key = index << 8 | number;
  return region;
}

CardQueue Mlx5Card::make_queue(std::byte* memory, uint32_t slots) {
  const QueueLayout layout(slots);
  CardQueue queue;
  locking(layout.bytes,
          [&] { queue.memory = LentMemory(*device_, device_->lend(memory, layout.bytes)); });
  const QueuePlan plan{.domain = device_->protection_domain(),
                       .registers = registers().number,
                       .event_queue = device_->event_queue(),
                       .memory = queue.memory.get().number,
                       .log_slots = static_cast<uint32_t>(std::bit_width(slots) - 1),
                       .blocks = layout.blocks,
                       .completions = layout.completions,
                       .pair_record = layout.pair_record,
                       .completion_record = layout.completion_record};
  uint32_t completion_queue = 0;
  queue.completions = create(create_completion_queue(plan), "CREATE_CQ", completion_queue);
  queue.pair = create(create_queue_pair(plan, completion_queue), "CREATE_QP", queue.number);
  modify(queue.pair, to_init(queue.number, path_), "RST2INIT_QP");
  return queue;
}

void Mlx5Card::connect(const CardQueue& queue, const PeerPlan& peer, const CardLimits& there) {
  PathPlan path = path_;
  path.mtu = std::min(path.mtu, there.mtu);
  path.log_reads_asked = std::min(path.log_reads_asked, there.log_reads_served);
  path.log_reads_served = std::min(path.log_reads_served, there.log_reads_asked);
  modify(queue.pair, to_receive(queue.number, path, peer), "INIT2RTR_QP");
  modify(queue.pair, to_send(queue.number, path), "RTR2RTS_QP");
}

void Mlx5Card::end(const CardQueue& queue) {
  modify(queue.pair, to_error(queue.number), "2ERR_QP");
}

EthernetRoute Mlx5Card::route(const Gid& peer) {
  return device_->route({.port = path_.port,
                         .gid_index = path_.gid_index,
                         .traffic_class = path_.traffic_class,
                         .target = peer});
}

}  // namespace tokenyard::ibgda
