/// An mlx5 queue pair that kernels post to: they write the card's own entries, store the doorbell
/// record and ring. Any threads of a rank may post to one queue at the same time.
///
///   reserve   takes the next block, if the entry that used it last has completed   `reserved`
///   write     the entry, then the block's stamp: its index + 1 (release, gpu)      `stamps`
///   publish   counts itself among `ringers` (acq_rel, gpu). The thread that finds nobody there
///             reads stamps (acquire) from the last published entry on, up to the first gap; stores
///             the doorbell record (release, sys) and the doorbell behind it (release, sys); and
///             gives the duty back, unless others have come meanwhile: then it does so again.
///
/// So entries are published in order, each once it and all before it are written. No thread waits
/// for another one: a thread that has written behind a gap leaves, and the one that fills the gap
/// finds its stamp. A thread waits for the card only before it reserves, so it can fail without
/// leaving a gap. (docs/decisions/mlx5_publication.md)
///
/// The card tells its progress in one entry that each completion overwrites. `completed` is what
/// threads have read there, in 32 bits; the card's 16 are enough because at most `slots` entries
/// are under way.
#pragma once

#include <algorithm>

#include "device/memory.hpp"
#include "device/mlx5_layout.hpp"
#include "device/mutated.hpp"
#include "device/network_request.hpp"
#include "device/wait.hpp"

namespace tokenyard {

/// One queue pair, in device memory. Its addresses are set by the host. Registered regions begin at
/// address 0 of their keys.
struct Mlx5SendQueue {
  static constexpr uint32_t kSlotsMax = 1 << 15;
  mlx5::Block* blocks;                 ///< [slots]
  uint32_t* record;                    ///< `send` of the doorbell record
  mlx5::BlueFlame* blue_flame;         ///< two halves of a register
  const mlx5::Completion* completion;  ///< of a collapsed completion queue
  uint32_t* stamps;                    ///< [slots]
  std::byte* const* bases;             ///< [kNetworkRegions] where this rank's regions begin
  const AbortWord* gone;               ///< [ranks] see is_gone
  AbortWord* refused;                  ///< the rank's abort word
  uint64_t old_values;                 ///< where the card puts what fetch-adds return: 8 bytes that
                                       ///< nobody reads, an offset in the region of this key
  MemoryKey old_values_key;
  uint32_t slots;   ///< a power of 2
  uint32_t number;  ///< of the queue pair

  alignas(64) uint32_t reserved;   ///< entries
  alignas(64) uint32_t completed;  ///< entries, as far as threads have seen
  uint32_t ended;                  ///< an Ending
  alignas(64) uint32_t ringers;    ///< threads whose entries are to be published
  uint32_t rung;                   ///< entries published; the ringing thread's
  uint32_t half;                   ///< of the register, that rings next; the ringing thread's

  enum class Ending : uint32_t { none, unanswered, refused };
};

/// A card's answer to an entry that has failed, which names less than that to our own requests.
struct Mlx5Refusal {
  NetworkCheck check;
  NetworkRefusal facts;
};
TOKENYARD_HOST_DEVICE Mlx5Refusal mlx5_refusal(const mlx5::Block& block, mlx5::Syndrome syndrome) {
  const auto of_key = [](NetworkCheck check, MemoryKey key) {
    return Mlx5Refusal{check, {.region = region_of_key(key), .expected = 0, .seen = key}};
  };
  switch (syndrome) {
    case mlx5::Syndrome::remote_access:
    case mlx5::Syndrome::remote_invalid:
      return of_key(NetworkCheck::target, mlx5::big_endian(block.remote.key));
    case mlx5::Syndrome::local_protection:
      return of_key(NetworkCheck::source, mlx5::big_endian(block.data[0].key));
    case mlx5::Syndrome::flushed:
      return of_key(NetworkCheck::queue, 0);
    default:
      return of_key(NetworkCheck::request, 0);
  }
}

class Mlx5Queue {
 public:
  TOKENYARD_DEVICE explicit Mlx5Queue(const QueueEnd& end) : end_(end), queue_(*end.mlx5) {}

  TOKENYARD_DEVICE bool put(const Deadline& deadline, uint32_t phase, const NetworkTarget& target,
                            const NetworkSource* pieces, uint32_t count) const {
    const uint64_t bytes = sum_of(pieces, count);
    if (bytes > kNetworkPutMax) return refuse_size(deadline, phase, target, kNetworkPutMax, bytes);
    Blocks at;
    const bool alive = reserve(deadline, phase, 1, at);
    if (!at.reserved) return alive;
    write_put(at.first, target, pieces, count);
    publish();
    return true;
  }
  TOKENYARD_DEVICE bool put_and_signal(const Deadline& deadline, uint32_t phase,
                                       const NetworkTarget& target, const NetworkSource* pieces,
                                       uint32_t count, const NetworkTarget& word,
                                       uint64_t addend) const {
    const uint64_t bytes = sum_of(pieces, count);
    if (bytes > kNetworkPutMax) return refuse_size(deadline, phase, target, kNetworkPutMax, bytes);
    Blocks at;
    const bool alive = reserve(deadline, phase, 2, at);
    if (!at.reserved) return alive;
    write_put(at.first, target, pieces, count);
    write_signal(at.first + 1, word, addend);
    publish();
    return true;
  }

  TOKENYARD_DEVICE bool put_inline(const Deadline& deadline, uint32_t phase,
                                   const NetworkTarget& target, const void* from,
                                   uint32_t bytes) const {
    if (bytes > kNetworkInlineMax) return refuse_inline(deadline, phase, target, bytes);
    const uint32_t entries = entries_of(bytes);
    Blocks at;
    const bool alive = reserve(deadline, phase, entries, at);
    if (!at.reserved) return alive;
    write_inline(at.first, entries, target, from, bytes);
    publish();
    return true;
  }
  TOKENYARD_DEVICE bool put_inline_and_signal(const Deadline& deadline, uint32_t phase,
                                              const NetworkTarget& target, const void* from,
                                              uint32_t bytes, const NetworkTarget& word,
                                              uint64_t addend) const {
    // Three entries may be more than the queue has.
    if (entries_of(bytes) > 1)
      return put_inline(deadline, phase, target, from, bytes) &&
             signal(deadline, phase, word, addend);
    Blocks at;
    const bool alive = reserve(deadline, phase, 2, at);
    if (!at.reserved) return alive;
    write_inline(at.first, 1, target, from, bytes);
    write_signal(at.first + 1, word, addend);
    publish();
    return true;
  }

  TOKENYARD_DEVICE bool signal(const Deadline& deadline, uint32_t phase,
                               const NetworkTarget& target, uint64_t addend) const {
    Blocks at;
    const bool alive = reserve(deadline, phase, 1, at);
    if (!at.reserved) return alive;
    write_signal(at.first, target, addend);
    publish();
    return true;
  }

  /// Waits until all entries reserved so far have completed, other threads' too.
  TOKENYARD_DEVICE bool flush(const Deadline& deadline, uint32_t phase) const {
    // Relaxed: this thread's own entries, and those ordered before, are counted in any case.
    const uint32_t count = load<Order::relaxed, Scope::gpu>(&queue_.reserved);
    Awaited what{.phase = phase, .rank = end_.peer, .expected = count};
    return await(deadline, what, [&] {
      // Acquires what the thread that read the card's entry acquired: sources may be reused.
      const uint32_t completed = load<Order::acquire, Scope::gpu>(&queue_.completed);
      what.seen = completed;
      return static_cast<int32_t>(completed - count) >= 0;
    });
  }
  TOKENYARD_DEVICE uint32_t reserved() const {
    // Relaxed: as in flush.
    return load<Order::relaxed, Scope::gpu>(&queue_.reserved);
  }
  TOKENYARD_DEVICE bool has_read(uint32_t number) const {
    if (ending() != Ending::none) return true;
    poll();
    // Acquires what the thread that read the card's entry acquired: sources may be reused.
    const uint32_t completed = load<Order::acquire, Scope::gpu>(&queue_.completed);
    return static_cast<int32_t>(completed - number) >= 0;
  }

 private:
  using Ending = Mlx5SendQueue::Ending;

  TOKENYARD_DEVICE static mlx5::Block block_of(const NetworkTarget& target) {
    mlx5::Block block{};
    block.remote = {.address = mlx5::big_endian(target.offset),
                    .key = mlx5::big_endian(target.key),
                    .reserved = 0};
    return block;
  }
  TOKENYARD_DEVICE mlx5::Data data_of(const NetworkSource& piece) const {
    const uint32_t number = region_of_key(piece.key);
    const auto base =
        reinterpret_cast<uintptr_t>(number < kNetworkRegions ? queue_.bases[number] : nullptr);
    const uint64_t offset = reinterpret_cast<uintptr_t>(piece.from) - base;
    return {.bytes = mlx5::big_endian(piece.bytes),
            .key = mlx5::big_endian(piece.key),
            .address = mlx5::big_endian(offset)};
  }

  struct Blocks {
    uint32_t first = 0;     ///< index
    bool reserved = false;  ///< else the call has failed, or nobody answers: the request is dropped
  };
  /// Takes the next `entries` blocks. Returns false if the call has failed.
  TOKENYARD_DEVICE bool reserve(const Deadline& deadline, uint32_t phase, uint32_t entries,
                                Blocks& at) const {
    Awaited what{.phase = phase, .rank = end_.peer};
    return await(deadline, what, [&] {
      // Relaxed: the compare_exchange decides.
      uint32_t head = load<Order::relaxed, Scope::gpu>(&queue_.reserved);
      // Acquires what the thread that read the card's entry acquired: blocks may be reused.
      const uint32_t completed = load<Order::acquire, Scope::gpu>(&queue_.completed);
      what.seen = completed;
      for (;;) {
        what.expected = head + entries - queue_.slots;
        const uint32_t room = queue_.slots + (mutated() ? 1 : 0);  // A mutant takes one too many.
        if (static_cast<int32_t>(head + entries - completed) > static_cast<int32_t>(room))
          return false;
        const uint32_t seen =
            compare_exchange<Order::relaxed, Scope::gpu>(&queue_.reserved, head, head + entries);
        if (seen == head) break;
        head = seen;
      }
      at = {.first = head, .reserved = true};
      return true;
    });
  }

  TOKENYARD_DEVICE static uint64_t sum_of(const NetworkSource* pieces, uint32_t count) {
    uint64_t bytes = 0;
    for (uint32_t piece = 0; piece < count; ++piece) bytes += pieces[piece].bytes;
    return bytes;
  }

  TOKENYARD_DEVICE void write_put(uint32_t index, const NetworkTarget& target,
                                  const NetworkSource* pieces, uint32_t count) const {
    mlx5::Block block = block_of(target);
    uint32_t segments = 2;
    for (uint32_t piece = 0; piece < count; ++piece) {
      // An empty segment would mean 2^31 bytes.
      if (pieces[piece].bytes != 0) block.data[segments++ - 2] = data_of(pieces[piece]);
    }
    block.control = mlx5::control_of(mlx5::Opcode::rdma_write, 0, index, queue_.number, segments);
    write(index, block);
  }

  /// An entry holds 28 bytes, so more take two.
  TOKENYARD_DEVICE static uint32_t entries_of(uint32_t bytes) {
    return bytes > mlx5::Block::kInlineMax ? 2 : 1;
  }
  TOKENYARD_DEVICE void write_inline(uint32_t index, uint32_t entries, const NetworkTarget& target,
                                     const void* from, uint32_t bytes) const {
    for (uint32_t entry = 0; entry < entries; ++entry) {
      const uint32_t begin = entry * mlx5::Block::kInlineMax;
      const uint32_t part = std::min(bytes - begin, uint32_t{mlx5::Block::kInlineMax});
      mlx5::Block block = block_of(target + begin);
      block.inline_header = mlx5::big_endian(mlx5::kInline | part);
      for (uint32_t byte = 0; byte < part; ++byte)
        block.inline_bytes[byte] = static_cast<const uint8_t*>(from)[begin + byte];
      const uint32_t segments = part == 0 ? 2 : 2 + (4 + part + 15) / 16;
      block.control =
          mlx5::control_of(mlx5::Opcode::rdma_write, 0, index + entry, queue_.number, segments);
      write(index + entry, block);
    }
  }

  TOKENYARD_DEVICE void write_signal(uint32_t index, const NetworkTarget& word,
                                     uint64_t addend) const {
    mlx5::Block block = block_of(word);
    block.add = {.addend = mlx5::big_endian(addend), .boundary = 0};
    block.old_value = {.bytes = mlx5::big_endian(uint32_t{sizeof(uint64_t)}),
                       .key = mlx5::big_endian(queue_.old_values_key),
                       .address = mlx5::big_endian(queue_.old_values)};
    block.control = mlx5::control_of(mlx5::Opcode::masked_fetch_add, mlx5::kEightBytes, index,
                                     queue_.number, 4);
    write(index, block);
  }

  TOKENYARD_DEVICE void write(uint32_t index, const mlx5::Block& block) const {
    const uint32_t slot = index & (queue_.slots - 1);
    queue_.blocks[slot] = block;
    // Publishes the entry and its sources to the thread that rings.
    store<Order::release, Scope::gpu>(&queue_.stamps[slot], index + 1);
  }

  TOKENYARD_DEVICE void publish() const {
    // One modification order: either the ringing thread reads this addition when it gives the duty
    // back, and then sees the stamps, or this thread reads 0, and sees what that one has rung.
    if (fetch_add<Order::acq_rel, Scope::gpu>(&queue_.ringers, 1) != 0) return;
    uint32_t come = 1;
    do {
      ring();
      const uint32_t before = fetch_add<Order::acq_rel, Scope::gpu>(&queue_.ringers, 0u - come);
      come = before - come;
    } while (come != 0);
  }

  TOKENYARD_DEVICE void ring() const {
    uint32_t head = queue_.rung;
    while (head - queue_.rung < queue_.slots && is_written(head)) ++head;
    if (head == queue_.rung) return;
    queue_.rung = head;
    // Read before the record is stored: then the card may complete the entry, and another thread
    // write the next one to its block.
    const mlx5::Control last = queue_.blocks[(head - 1) & (queue_.slots - 1)].control;
    const uint64_t doorbell = last.modifier_index_opcode | uint64_t{last.queue_segments} << 32;
    // Publishes the entries and their sources; the card may read the record at any time.
    store<Order::release, Scope::sys>(queue_.record, mlx5::big_endian(head & 0xffff));
    // Behind the record: the card that this wakes reads it.
    store<Order::release, Scope::sys>(&queue_.blue_flame->halves[queue_.half].doorbell, doorbell);
    queue_.half ^= 1;
  }
  TOKENYARD_DEVICE bool is_written(uint32_t index) const {
    // Acquires the entry and its sources, which another thread may have written.
    const uint32_t stamp =
        load<Order::acquire, Scope::gpu>(&queue_.stamps[index & (queue_.slots - 1)]);
    return stamp == index + 1;
  }

  /// Waits until `condition()` holds, or nobody answers. Returns false if the call has failed.
  template <class Condition>
  TOKENYARD_DEVICE bool await(const Deadline& deadline, Awaited& what, Condition condition) const {
    uint32_t refused = 0;
    const bool ended = wait_until(deadline, what, [&] {
      auto ending = this->ending();
      if (ending == Ending::none) {
        if (condition()) return true;
        poll();
        ending = this->ending();
      }
      if (ending == Ending::none) return condition();
      if (ending == Ending::unanswered) return true;
      // Acquires the refusal.
      refused = load<Order::acquire, Scope::sys>(&end_.pair->refused);
      return refused != 0;
    });
    return refused == 0 ? ended : fail_refused(end_, deadline, what, refused);
  }

  /// Reads the card's progress.
  TOKENYARD_DEVICE void poll() const {
    // Acquires the end of the card's reads of entries and sources.
    const uint32_t word = load<Order::acquire, Scope::sys>(&queue_.completion->index_opcode);
    switch (mlx5::completed_of(word)) {
      case mlx5::Completed::request: {
        // Relaxed: it only serves to extend the card's 16 bits.
        const uint32_t completed = load<Order::relaxed, Scope::gpu>(&queue_.completed);
        const auto ahead = static_cast<uint16_t>(mlx5::index_of(word) + 1 - completed);
        // More than the slots: older than what another thread has seen meanwhile.
        if (ahead == 0 || ahead > queue_.slots) return;
        // Passes on what this thread has acquired. If it fails, another thread was faster.
        compare_exchange<Order::release, Scope::gpu>(&queue_.completed, completed,
                                                     completed + ahead);
        return;
      }
      case mlx5::Completed::request_error:
        return note_error(mlx5::index_of(word));
      case mlx5::Completed::invalid:
        return;
    }
  }

  /// Ends the queue for the reason that the card gives for entry `index`.
  TOKENYARD_DEVICE void note_error(uint16_t index) const {
    // Relaxed: with the entry above. Or it is already that of a later entry, which was flushed.
    const auto syndrome =
        mlx5::syndrome_of(load<Order::relaxed, Scope::sys>(&queue_.completion->syndromes));
    const bool unanswered =
        syndrome == mlx5::Syndrome::retry_exceeded || is_gone(queue_.gone, end_.peer);
    if (!end(unanswered ? Ending::unanswered : Ending::refused) || unanswered) return;
    const Mlx5Refusal refusal = mlx5_refusal(queue_.blocks[index & (queue_.slots - 1)], syndrome);
    publish_refusal(*end_.pair, queue_.refused, refusal.check, refusal.facts);
  }

  /// Ends the queue, if no other thread has; returns whether it did.
  TOKENYARD_DEVICE bool end(Ending ending) const {
    // Passes on what this thread has acquired: the card reads no more sources.
    return compare_exchange<Order::release, Scope::gpu>(
               &queue_.ended, static_cast<uint32_t>(Ending::none), static_cast<uint32_t>(ending)) ==
           static_cast<uint32_t>(Ending::none);
  }
  TOKENYARD_DEVICE Ending ending() const {
    // Acquires the end of the card's reads of sources.
    return static_cast<Ending>(load<Order::acquire, Scope::gpu>(&queue_.ended));
  }

  TOKENYARD_DEVICE bool refuse_inline(const Deadline& deadline, uint32_t phase,
                                      const NetworkTarget& target, uint32_t bytes) const {
    return refuse_size(deadline, phase, target, kNetworkInlineMax, bytes < 0xffff ? bytes : 0xffff);
  }
  /// Refuses a request that no card should see, as a card would.
  TOKENYARD_DEVICE bool refuse_size(const Deadline& deadline, uint32_t phase,
                                    const NetworkTarget& target, uint64_t most,
                                    uint64_t bytes) const {
    if (end(Ending::refused)) {
      publish_refusal(*end_.pair, queue_.refused, NetworkCheck::size,
                      {.region = region_of_key(target.key), .expected = most, .seen = bytes});
    }
    Awaited what{.phase = phase, .rank = end_.peer};
    return await(deadline, what, [] { return false; });
  }

  const QueueEnd& end_;
  Mlx5SendQueue& queue_;
};

}  // namespace tokenyard
