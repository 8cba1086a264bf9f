/// The kernel of all_to_all with a size per pair, between hosts. See splits_between_hosts.hpp.
#pragma once

#include <algorithm>

#include "collectives/device/kernels/between_hosts_kernel.hpp"
#include "collectives/device/kernels/counts_kernel.hpp"
#include "collectives/device/kernels/split_counts_kernel.hpp"
#include "collectives/device/kernels/splits_between_hosts.hpp"

namespace tokenyard::device_collectives {

enum class SplitsBetweenBarrier : uint32_t {
  described = 1,  ///< the block knows all sizes
};

struct SplitsBetweenShared : BetweenShared {
  bool alike;        ///< whether data may move
  uint64_t longest;  ///< bytes of the longest message
};

/// The sizes of a call as a block knows them.
struct PairSizes {
  const SplitsBetweenParams& params;
  const SplitsWork& splits;

  TOKENYARD_DEVICE bool known() const { return params.arrays.splits == nullptr; }
  /// Returns what this rank tells of a member.
  TOKENYARD_DEVICE CountWord own_word(uint32_t member) const {
    return known() ? params.known[splits.call.empty.slot_of(member)] : splits.own_word(member);
  }
  /// Returns where this rank's part of a member begins: of the input, or of the result.
  TOKENYARD_DEVICE uint64_t begin_of(Role role, uint32_t member) const {
    const bool sends = role == Role::sender;
    if (!known()) return sends ? splits.sent_at(member) : splits.received_at(member);
    uint64_t bytes = 0;
    const uint32_t slot = splits.call.empty.slot_of(member);
    for (uint32_t before = 0; before < slot; ++before)
      bytes += sends ? params.known[before].sent() : params.known[before].expected();
    return bytes;
  }
  TOKENYARD_DEVICE uint64_t* offset(Role role, uint32_t member) const {
    return params.offsets +
           (size_t{block::index()} * kRoles + static_cast<uint32_t>(role)) * splits.call.ranks +
           member;
  }
};

/// The parts of messages whose sizes all ranks have told one another.
struct ToldParts {
  const BetweenWork& work;
  const PairSizes& sizes;
  const uint64_t longest;
  const uint32_t chunk_bytes;

  TOKENYARD_DEVICE uint64_t rounds(uint32_t channel) const {
    return work.rounds_of(channel, longest, chunk_bytes);
  }
  TOKENYARD_DEVICE HostChunk chunk(uint32_t channel, uint64_t round) const {
    return {.begin = (round * work.params.near.channels + channel) * chunk_bytes, .round = round};
  }
  TOKENYARD_DEVICE uint32_t bytes_of(const HostChunk& chunk, uint32_t source,
                                     uint32_t destination) const {
    return BetweenWork::bytes_in(chunk, sizes.splits.published(source, destination).sent(),
                                 chunk_bytes);
  }
  TOKENYARD_DEVICE uint64_t input_at(uint32_t destination) const {
    return *sizes.offset(Role::sender, destination);
  }
  TOKENYARD_DEVICE uint64_t result_at(uint32_t source) const {
    return *sizes.offset(Role::receiver, source);
  }
};

/// Greets the rail peers with this rank's sizes. Called by the first warp of block 0.
TOKENYARD_DEVICE void greet_with_sizes(const BetweenWork& work, const PairSizes& sizes) {
  const uint32_t ranks = work.call.ranks;
  for (uint32_t i = warp::lane(); i < ranks * work.params.link_count; i += kWarpLanes) {
    const Peer<std::byte> stage = LinkEnd(work, 0, i / ranks).greeting_stage();
    store_vector((stage + spans::distance(i % ranks * sizeof(CountWord))).as<Bytes16>(),
                 sizes.own_word(i % ranks).bits);
  }
  warp::sync();  // A lane's greeting releases all lanes' sizes.
  for_links(work, [&](uint32_t link) {
    return LinkEnd(work, 0, link).greet_with(ranks * static_cast<uint32_t>(sizeof(CountWord)));
  });
}

/// Stores a size that a rank has told on all ranks of this host.
TOKENYARD_DEVICE void store_size_on_host(const BetweenWork& work, uint32_t source, uint32_t member,
                                         const CountWord& word) {
  for (uint32_t place = 0; place < work.hosts().locals; ++place)
    store<Order::relaxed, Scope::sys>(
        work.call.windows.counts(work.hosts().local(place), work.parity, source, member),
        word.bits);
}

/// Tells the ranks of this host this rank's sizes and its rail peers'. Called by the last warp of
/// block 0.
TOKENYARD_DEVICE void publish_on_host(const BetweenWork& work, const PairSizes& sizes) {
  const uint32_t ranks = work.call.ranks;
  for (uint32_t member = warp::lane(); member < ranks; member += kWarpLanes)
    store_size_on_host(work, work.call.rank, member, sizes.own_word(member));
  warp::sync();
  fence_release<Scope::sys>();  // The call word releases the sizes, too.
  if (warp::elect()) store_on_host(work, work.call.rank, work.word());
  pass_greetings_on(work, [&](const LinkEnd& link) {
    for (uint32_t member = 0; member < ranks; ++member) {
      const auto at = spans::distance(member * static_cast<uint32_t>(sizeof(CountWord)));
      store_size_on_host(work, link.rank(), member,
                         {load_vector((link.greeting_data() + at).as<const Bytes16>())});
    }
  });
}

/// Returns the bytes of the longest message. Called by a warp.
TOKENYARD_DEVICE uint64_t longest_message(const SplitsWork& splits) {
  const uint32_t ranks = splits.call.ranks;
  uint64_t longest = 0;
  for (uint32_t pair = warp::lane(); pair < ranks * ranks; pair += kWarpLanes)
    longest = std::max(longest, splits.published(pair / ranks, pair % ranks).sent());
  for (uint32_t other = kWarpLanes / 2; other > 0; other /= 2)
    longest = std::max(longest, warp::shuffle_xor(longest, other));
  return longest;
}

/// Waits for all ranks' sizes, compares them and describes the call. Called by the last warp of a
/// block.
TOKENYARD_DEVICE void describe_call(const BetweenWork& work, const PairSizes& sizes,
                                    const BlockDeadline& deadline, SplitsBetweenShared& shared) {
  bool alike = await_all_words(work, deadline);
  warp::sync();  // Each lane has acquired other ranks' words.
  alike = alike && (sizes.known() ? compare_counts(work.call, work.parity, deadline)
                                  : splits_fit(sizes.splits));
  uint64_t longest = 0;
  if (alike) {
    longest = longest_message(sizes.splits);
    for (uint32_t member = warp::lane(); member < work.call.ranks; member += kWarpLanes)
      for (const Role role : {Role::sender, Role::receiver})
        *sizes.offset(role, member) = sizes.begin_of(role, member);
    if (!sizes.known() && block::index() == 0) store_received(sizes.splits);
  }
  if (warp::elect()) {
    shared.alike = alike;
    shared.longest = longest;
  }
}

TOKENYARD_DEVICE void exchange_splits_between_hosts(const SplitsBetweenParams& params) {
  auto& shared = block::shared<SplitsBetweenShared>();
  const CallParams& call = params.between.call;
  const BlockDeadline deadline = begin_deadline(call);
  if (thread::index() == 0) shared.stop[0] = shared.stop[1] = 0;
  if (!begin_call(call, shared, deadline)) return;
  const BetweenDeadlines deadlines(call.wait_context);
  const uint64_t epoch = shared.epoch;
  const BetweenWork work{.params = params.between,
                         .call = call,
                         .deadlines = deadlines,
                         .epoch = epoch,
                         .digest = digest_of(call, epoch),
                         .parity = parity_of(epoch)};
  const SplitsWork splits{params.arrays, call, deadline, work.parity};
  const PairSizes sizes{params, splits};
  const bool moves = warp::index() + 1 != warp::count();
  if (!moves) {
    if (block::index() == 0) publish_on_host(work, sizes);
    describe_call(work, sizes, deadline, shared);
    pass_epoch(call, epoch);
  } else if (block::index() == 0 && Movers::is_first()) {
    greet_with_sizes(work, sizes);
  }
  NamedBarrier(SplitsBetweenBarrier::described).sync(block::threads());
  if (!moves || !shared.alike) return;
  Movers movers(shared);
  const uint32_t channels = params.between.near.channels;
  const ToldParts parts{
      .work = work,
      .sizes = sizes,
      .longest = shared.longest,
      .chunk_bytes = link_chunk_bytes(shared.longest, channels, params.between.far.slot_bytes)};
  for (uint32_t channel = block::index(); channel < channels; channel += grid::blocks())
    if (!work_off(HostMovements<ToldParts>(work, movers, channel, parts))) return;
  if (block::index() == 0)
    for_links(work, [&](uint32_t link) { return LinkEnd(work, 0, link).flush(); });
}

TOKENYARD_DEFINE_KERNEL(splits_between_hosts_kernel, exchange_splits_between_hosts,
                        SplitsBetweenParams, SplitsBetweenShared, kBetweenThreadsMax)

}  // namespace tokenyard::device_collectives
