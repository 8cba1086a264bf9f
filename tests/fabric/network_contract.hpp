/// The guarantees of every network to kernels (device/network.hpp). Each clause is a program of
/// every rank.
#pragma once

#include <algorithm>
#include <functional>
#include <latch>

#include "fabric/network/claimed_queues.hpp"
#include "fabric/network_fixture.hpp"

namespace tokenyard::testing {

using FixtureOptions = NetworkFixture::Options;

/// Puts of any length and alignment are visible with the signal posted after them, epoch after
/// epoch, over changing queues.
inline void signals_follow_puts(World& world, uint32_t epochs, const FixtureOptions& options = {}) {
  NetworkFixture fixture(world, options);
  NetworkParams params = fixture.params();
  for (params.epoch = 1; params.epoch <= epochs; ++params.epoch)
    fixture.run(network_exchange_kernel, {}, params);
  fixture.require_right();
  world.barrier("exchanged");
}

/// A source may be written again after a flush.
inline void flush_frees_sources(World& world, const FixtureOptions& options = {}) {
  NetworkFixture fixture(world, options);
  fixture.run(network_reuse_kernel, {}, fixture.params());
  fixture.require_right();
  world.barrier("exchanged");
}

/// A ring loses, repeats and overtakes nothing, at any capacity and over several kernels.
inline void rings_keep_credit(World& world, uint32_t slots, uint32_t messages,
                              const FixtureOptions& options = {}) {
  promise(network_of(world)->queues_per_peer() >= 2, "both ends of a ring need a queue each");
  NetworkFixture fixture(world, options);
  NetworkParams params = fixture.params();
  params.ring_slots = slots;
  params.ring_messages = messages;
  for (uint32_t kernel = 0; kernel < 2; ++kernel)
    fixture.run(network_rings_kernel, {.blocks = 2 * world.size()}, params);
  fixture.require_right();
  world.barrier("exchanged");
}

/// A wait for a signal that never comes ends at its deadline and names the peer.
inline void names_the_absent_over_network(World& world) {
  const uint32_t absent = world.size() - 1;
  NetworkFixture fixture(world, {.timeout = std::chrono::milliseconds(300)});
  if (world.rank() != absent) {
    NetworkParams params = fixture.params();
    params.epoch = 1;
    try {
      fixture.run(network_exchange_kernel, {}, params);
      promise(!fixture.network.reaches(absent), "an absent rank was not missed");
    } catch (const PeerTimeout& error) {
      promise(error.facts.rank == absent && error.facts.phase == "network: arrive", error.what());
    }
  }
  world.barrier("it was named");
}

/// Requests that a network must refuse.
enum class BadRequest : uint32_t {
  wrong_tag,
  unknown_region,
  stale_key,
  behind_the_end,
  overflowing,
  wrong_source,
  before_the_source,
  too_large,
  inline_too_large,
  unaligned,
};
inline constexpr uint32_t kBadRequests = 10;

/// A bad request, and what its error names.
struct BadCase {
  RequestParams params;
  NetworkFault::Facts facts;
};

inline BadCase bad_case(BadRequest what, NetworkFixture& fixture, uint32_t peer) {
  const NetworkTarget window = fixture.targets[peer];
  const RegisteredMemory& scratch = fixture.scratch();
  // Every rank's region is as large as this one's.
  const size_t window_bytes = fixture.registered() == nullptr
                                  ? arena_of(fixture.world).capacity()
                                  : fixture.registered()->region_bytes();
  BadCase bad{.params = {.wait_context = fixture.wait_context(),
                         .queues = fixture.network.queues(),
                         .peer = peer,
                         .queue = 0,
                         .count = 1,
                         .apart_ns = 0,
                         .kind = NetworkRequest::Kind::put,
                         .target = window,
                         .source = {.key = scratch.key(), .bytes = 40, .from = scratch.data()},
                         .flag = {},
                         .each_flag = {},
                         .flushes = 1,
                         .took_ns = fixture.allocate<uint64_t>(1)},
              .facts = {}};
  bad.facts.rank = fixture.world.rank();
  bad.facts.peer = peer;
  bad.facts.region = region_of_key(window.key);
  NetworkTarget& target = bad.params.target;
  NetworkSource& source = bad.params.source;
  switch (what) {
    case BadRequest::wrong_tag:
      target.key ^= 0x100;
      bad.facts.check = "target key";
      bad.facts.expected = window.key;
      bad.facts.seen = target.key;
      break;
    case BadRequest::unknown_region:
      target.key |= 0xff;
      bad.facts.check = "target key";
      bad.facts.region = 0xff;
      bad.facts.seen = target.key;
      break;
    case BadRequest::stale_key:
      bad.facts.check = "target key";
      bad.facts.seen = window.key;
      break;
    case BadRequest::behind_the_end:
      target.offset = window_bytes - 39;
      bad.facts.check = "target range";
      bad.facts.expected = window_bytes;
      bad.facts.seen = window_bytes + 1;
      break;
    case BadRequest::overflowing:
      target.offset = ~uint64_t{0} - 10;
      bad.facts.check = "target range";
      bad.facts.expected = window_bytes;
      bad.facts.seen = target.offset + 40;
      break;
    case BadRequest::wrong_source:
      source.key ^= 0x100;
      bad.facts.check = "source key";
      bad.facts.region = region_of_key(source.key);
      bad.facts.expected = scratch.key();
      bad.facts.seen = source.key;
      break;
    case BadRequest::before_the_source:
      source.from = scratch.region() - 1;
      bad.facts.check = "source range";
      bad.facts.region = region_of_key(source.key);
      bad.facts.expected = scratch.region_bytes();
      bad.facts.seen = 39;
      break;
    case BadRequest::too_large:
      source.bytes = kNetworkPutMax + 1;
      bad.facts.check = "size";
      bad.facts.expected = kNetworkPutMax;
      bad.facts.seen = source.bytes;
      break;
    case BadRequest::inline_too_large:
      bad.params.kind = NetworkRequest::Kind::put_inline;
      source.bytes = (1 << 16) + 8;
      bad.facts.check = "size";
      bad.facts.expected = kNetworkInlineMax;
      bad.facts.seen = 0xffff;
      break;
    case BadRequest::unaligned:
      bad.params.kind = NetworkRequest::Kind::signal;
      target.offset += 4;
      bad.facts.check = "alignment";
      bad.facts.seen = 4;
      break;
  }
  return bad;
}

/// A card may tell only whose memory or word was wrong, and its key.
inline void require_same(const NetworkFault& error, const NetworkFault::Facts& facts) {
  const NetworkFault::Facts& told = error.facts;
  const bool coarse = (told.check == "target" &&
                       (facts.check.starts_with("target") || facts.check == "alignment")) ||
                      (told.check == "source" && facts.check.starts_with("source"));
  const bool same = told.rank == facts.rank && told.peer == facts.peer &&
                    told.queue == facts.queue && told.region == facts.region &&
                    (coarse ? told.expected == 0 &&
                                  region_of_key(static_cast<MemoryKey>(told.seen)) == facts.region
                            : told.check == facts.check && told.expected == facts.expected &&
                                  told.seen == facts.seen);
  promise(same,
          fmt::format("told: {}, but expected: {}", error.what(), NetworkFault(facts).what()));
}

/// Makes a bad request: it is refused by an error that names it, at once or when the network is
/// asked later.
inline void require_refused(NetworkFixture& fixture, const BadCase& bad) {
  try {
    // A flush may end before the network has looked at the target. Some words refuse a size.
    fixture.run(network_request_kernel, {}, bad.params);
  } catch (const NetworkFault& error) {
    require_same(error, bad.facts);
    const bool posts = error.facts.check == "size" && error.facts.phase == "network: post";
    promise(posts || error.facts.phase == "network: flush", error.what());
  }
  fixture.drain();
  try {
    fixture.network.check("later");
    throw BrokenContract("a bad request was not refused");
  } catch (const NetworkFault& error) {
    require_same(error, bad.facts);
    promise(error.facts.phase == "later", error.what());
  }
}

/// A bad request ends its queue, and its rank's waits, with an error that names it; the target is
/// unchanged.
inline void refuses(World& world, BadRequest what) {
  NetworkFixture fixture(world, {.in_arena = false});
  // A network that registers nothing has no key that grows stale within a world.
  if (what == BadRequest::stale_key && !fixture.network.registers_memory()) return;
  const uint32_t peer = fixture.far_peer();
  if (what == BadRequest::stale_key) fixture.registered()->deregister();
  world.barrier("keys are stale");

  const BadCase bad = bad_case(what, fixture, peer);
  require_refused(fixture, bad);
  // Everybody's requests to this rank were refused by now.
  world.barrier("refused");
  if (what != BadRequest::stale_key) {
    const auto window = std::make_unique<NetworkWindow>(fixture.read(fixture.window()));
    const auto* const bytes = reinterpret_cast<const uint8_t*>(window.get());
    promise(std::all_of(bytes, bytes + sizeof *window, [](uint8_t byte) { return byte == 0; }),
            "a refused request has changed its target");
  }
  world.barrier("unchanged");

  // A kernel that has posted nothing, in an object of its own.
  NetworkFixture second(world, {});
  const TimePoint begin = second.gpu.now();
  try {
    second.run(network_await_kernel, {},
               AwaitParams{.wait_context = second.wait_context(),
                           .rank = peer,
                           .word = second.window()->arrived[0],
                           .value = 1});
    throw BrokenContract("a wait for nothing has ended");
  } catch (const NetworkFault& error) {
    require_same(error, bad.facts);
    promise(error.facts.phase == "network: arrive", error.what());
  }
  promise(second.gpu.now() - begin < world.timeout() / 2, "a refusal has ended no other wait");
  world.barrier("all waits have ended");
}

/// A fault is forgotten with the exchange that has posted the refused request: others go on, and
/// are given other queues.
inline void a_fault_ends_with_its_exchange(World& world) {
  NetworkFixture fixture(world, {.in_arena = false});
  Network& network = fixture.network;
  const uint32_t peer = fixture.far_peer(), all = network.queues_per_peer();
  promise(all >= 2, "another exchange needs a queue");
  uint32_t faulty = 0;
  {
    const ClaimedQueues mine(network);
    faulty = mine.number();
    BadCase bad = bad_case(BadRequest::wrong_tag, fixture, peer);
    bad.params.queue = bad.facts.queue = faulty;
    require_refused(fixture, bad);
    world.barrier("refused");
  }
  network.check("after its end");
  promise(network.claim_queues(all).empty(), "the queue that has ended was given away again");

  NetworkFixture second(world, {});
  const ClaimedQueues others(network, all - 1);
  promise(others.exist(), "the fault of one queue has taken others");
  for (uint32_t which = 0; which < all - 1; ++which) {
    promise(others.number(which) != faulty, "the queue that has ended was given away again");
    RequestParams params = bad_case(BadRequest::wrong_tag, second, peer).params;
    params.target = second.targets[peer];
    params.queue = others.number(which);
    params.flag = second.targets[peer] + offsetof(NetworkWindow, arrived);
    second.run(network_request_kernel, {}, params);
    second.run(network_await_kernel, {},
               AwaitParams{.wait_context = second.wait_context(),
                           .rank = peer,
                           .word = second.window()->arrived[0],
                           .value = which + 1});
  }
  second.drain();
  network.check("of the others");
  world.barrier("all have arrived");

  // A timeout is not told as a fault of before.
  NetworkFixture third(world, {.timeout = std::chrono::milliseconds(300)});
  try {
    third.run(network_await_kernel, {},
              AwaitParams{.wait_context = third.wait_context(),
                          .rank = peer,
                          .word = third.window()->arrived[0],
                          .value = 1});
    throw BrokenContract("a wait for nothing has ended");
  } catch (const PeerTimeout& error) {
    promise(error.facts.rank == peer, error.what());
  }
  world.barrier("all waits have ended");
}

/// Memory that was deregistered is its owner's alone, whatever is under way to it.
inline void deregistering_ends_accesses(World& world) {
  NetworkFixture fixture(world, {.in_arena = false});
  const uint32_t peer = fixture.far_peer();
  RequestParams params = bad_case(BadRequest::wrong_tag, fixture, peer).params;
  params.target = fixture.targets[peer];
  params.count = 5;
  params.flushes = 0;
  // Requests after the first refused one may be refused because of it.
  const auto allow_refusal = [](const std::function<void()>& run) {
    try {
      run();
    } catch (const NetworkFault& error) {
      const bool first = error.facts.check.starts_with("target") && error.facts.expected == 0;
      promise(first || error.facts.check == "queue", error.what());
    }
  };
  allow_refusal([&] { fixture.run(network_request_kernel, {}, params); });
  fixture.registered()->deregister();
  constexpr int kMine = 0x5a;
  fixture.gpu.fill(fixture.window(), kMine, sizeof(NetworkWindow), Stream{});
  fixture.finish();
  fixture.drain();
  world.barrier("nothing is under way");
  const auto window = std::make_unique<NetworkWindow>(fixture.read(fixture.window()));
  const auto* const bytes = reinterpret_cast<const uint8_t*>(window.get());
  promise(std::all_of(bytes, bytes + sizeof *window, [](uint8_t byte) { return byte == kMine; }),
          "a put has reached memory after it was deregistered");
  allow_refusal([&] { fixture.network.check("afterwards"); });
  world.barrier("looked at");
}

/// A request with a key of the world before is refused.
inline void refuses_old_key(World& world, uint32_t peer, MemoryKey old_key) {
  NetworkFixture fixture(world, {});
  promise(old_key != fixture.network.arena_key(peer), "a new world must have other keys");
  BadCase bad = bad_case(BadRequest::wrong_tag, fixture, peer);
  bad.params.target.key = bad.facts.seen = old_key;
  require_refused(fixture, bad);
  world.barrier("refused");
}

/// The last rank ends with requests under way, without a word, as a process that is killed; the job
/// tells so. Those that wait for it name it, and what they post to it is dropped. No rank goes on
/// before all are `over`.
inline void names_the_killed(World& world, std::latch& over) {
  struct AtEnd {
    std::latch& over;
    ~AtEnd() { over.arrive_and_wait(); }
  } const at_end{over};
  const uint32_t killed = world.size() - 1;
  NetworkFixture fixture(world, {});
  NetworkParams params = fixture.params();
  params.epoch = 1;
  fixture.run(network_exchange_kernel, {}, params);
  world.barrier("exchanged");
  RequestParams requests = bad_case(BadRequest::wrong_tag, fixture, fixture.far_peer()).params;
  requests.target = fixture.targets[fixture.far_peer()] + offsetof(NetworkWindow, reused);
  requests.count = 5;
  requests.flushes = 0;
  fixture.run(network_request_kernel, {}, requests);
  if (world.rank() == killed) return;
  abort_flag_of(world).lost(killed);
  params.epoch = 2;
  try {
    fixture.run(network_exchange_kernel, {}, params);
    throw BrokenContract("a rank that was killed was not missed");
  } catch (const PeerLost& error) {
    promise(error.facts.rank == killed, error.what());
  }
  fixture.drain();
  fixture.network.check("afterwards");
}

/// How a rank ends after its last post.
enum class Ending : uint32_t { goodbye, world_ends, cancelled };
inline constexpr uint32_t kEndings = 3;

/// Requests posted before a rank ends take effect.
inline void what_was_posted_arrives(World& world, Ending ending) {
  NetworkFixture fixture(world, {});
  const uint32_t peer = fixture.far_peer();
  RequestParams params = bad_case(BadRequest::wrong_tag, fixture, peer).params;
  params.target = fixture.targets[peer];
  // Memory that is registered until the end.
  params.source.key = fixture.network.arena_key(world.rank());
  params.source.from = fixture.window();
  params.count = 5;
  params.flag = fixture.targets[peer] + offsetof(NetworkWindow, arrived);
  params.flushes = 0;
  if (world.rank() == 0) {
    fixture.run(network_request_kernel, {}, params);
    if (ending == Ending::cancelled) world.cancel();
    if (ending == Ending::goodbye) world.goodbye()();
    return;
  }
  if (world.rank() != fixture.far_peer(0)) return;
  fixture.run(network_await_kernel, {},
              AwaitParams{.wait_context = fixture.wait_context(),
                          .rank = 0,
                          .word = fixture.window()->arrived[0],
                          .value = 1});
}

/// Several warps post to one queue at the same time, each puts that its own signals follow. For
/// networks whose queues threads may share.
inline void warps_share_a_queue(World& world, uint32_t blocks, uint32_t warps) {
  NetworkFixture fixture(world, {});
  uint32_t sender = 0;
  while (fixture.far_peer(sender) != world.rank()) ++sender;
  fixture.run(network_shared_kernel, {.blocks = blocks, .warps = warps},
              SharedParams{fixture.params(), sender, fixture.far_peer()});
  fixture.require_right();
  world.barrier("shared");
}

/// Puts with their signals, more than a queue holds and from an odd slot on, so that a pair waits
/// for two slots: none is lost.
inline void pairs_fill_the_queue(World& world, uint32_t count) {
  NetworkFixture fixture(world, {});
  const uint32_t peer = fixture.far_peer();
  RequestParams params = bad_case(BadRequest::wrong_tag, fixture, peer).params;
  params.kind = NetworkRequest::Kind::signal;
  params.target = fixture.targets[peer] + offsetof(NetworkWindow, reused_arrived);
  params.flushes = 0;
  fixture.run(network_request_kernel, {}, params);
  params.kind = NetworkRequest::Kind::put;
  params.target = fixture.targets[peer];
  params.count = count;
  params.each_flag = fixture.targets[peer] + offsetof(NetworkWindow, arrived);
  fixture.run(network_request_kernel, {}, params);
  uint32_t sender = 0;
  while (fixture.far_peer(sender) != world.rank()) ++sender;
  fixture.run(network_await_kernel, {},
              AwaitParams{.wait_context = fixture.wait_context(),
                          .rank = sender,
                          .word = fixture.window()->arrived[0],
                          .value = count});
  fixture.drain();
  world.barrier("all have come");
  const uint64_t seen = fixture.read(fixture.window()->arrived[0]);
  promise(seen == count, fmt::format("{} signals of {} pairs came", seen, count));
  world.barrier("looked");
}

/// Carries one put of any size up to kNetworkPutMax.
inline void carries(World& world, uint32_t bytes) {
  NetworkFixture fixture(world, {});
  const uint32_t peer = fixture.far_peer();
  const RegisteredMemory from(world, bytes), to(world, bytes);
  std::vector<uint32_t> words(bytes / 4);
  const auto fill_with = [&](uint32_t rank) {
    for (uint32_t word = 0; word < words.size(); ++word) words[word] = word * 2654435761u + rank;
  };
  fill_with(world.rank());
  fixture.gpu.copy(from.data(), words.data(), bytes, Stream{});
  fixture.finish();
  const auto everybodys = gather(world, to.target(), "large targets");
  RequestParams params = bad_case(BadRequest::wrong_tag, fixture, peer).params;
  params.target = everybodys[peer];
  params.source = {.key = from.key(), .bytes = bytes, .from = from.data()};
  params.flag = fixture.targets[peer] + offsetof(NetworkWindow, arrived);
  fixture.run(network_request_kernel, {}, params);
  uint32_t sender = 0;
  while (fixture.far_peer(sender) != world.rank()) ++sender;
  fixture.run(network_await_kernel, {},
              AwaitParams{.wait_context = fixture.wait_context(),
                          .rank = sender,
                          .word = fixture.window()->arrived[0],
                          .value = 1});
  std::vector<uint32_t> seen(words.size());
  fixture.gpu.copy(seen.data(), to.data(), bytes, Stream{});
  fixture.finish();
  fill_with(sender);
  promise(seen == words, "a large put has arrived with other bytes");
  world.barrier("carried");
}

/// Returns the nanoseconds from the first of `count` puts, `apart_ns` apart, to the end of the
/// flush behind them.
inline uint64_t nanoseconds_of_puts(World& world, uint32_t count, uint32_t bytes,
                                    uint32_t apart_ns) {
  NetworkFixture fixture(world, {});
  RequestParams params = bad_case(BadRequest::wrong_tag, fixture, fixture.far_peer()).params;
  params.target = fixture.targets[params.peer];
  params.source.bytes = bytes;
  params.count = count;
  params.apart_ns = apart_ns;
  fixture.run(network_request_kernel, {}, params);
  const uint64_t took_ns = fixture.read(params.took_ns);
  world.barrier("measured");
  return took_ns;
}

}  // namespace tokenyard::testing
