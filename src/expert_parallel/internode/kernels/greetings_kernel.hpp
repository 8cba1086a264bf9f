/// How every rank learns what every rank does: words about each source, which ranks of a host store
/// into one another's windows. A source on another host puts its words to its rail peer, which
/// passes them on. Each word carries the call's epoch and releases no data, but for what a rank of
/// the same host did to its own buffer before the call.
#pragma once

#include "expert_parallel/common/expert_partition.hpp"
#include "expert_parallel/internode/kernels/coordinate_kernel.hpp"

namespace tokenyard::internode {

/// Returns how many words of a refusal are stored. One that no rank awaits might be stored after
/// its reader has ended, so only a refusal has more than its first.
TOKENYARD_DEVICE uint32_t refusal_words(bool refuses) {
  return refuses ? kRefusalWords : 1;
}

/// The ranks of a host, a lane each, loaded at once: the tables are far away, and the warps that
/// poll leave nothing of them in the cache. All lanes call these, alike.
class Members {
 public:
  TOKENYARD_DEVICE Members(const Hosts& hosts, uint32_t host) : size_(hosts.size_of(host)) {
    if (warp::lane() < size_) rank_ = hosts.member(host, warp::lane());
  }
  TOKENYARD_DEVICE uint32_t size() const { return size_; }
  TOKENYARD_DEVICE uint32_t at(uint32_t place) const { return warp::shuffle(rank_, place); }

 private:
  const uint32_t size_;
  uint32_t rank_ = 0;
};

/// This rank's words for one other rank of its host. `Words` computes the values that a call's
/// kernel knows: `ready_word(word, host)`, `refuses()`, `refusal(word)`, `count(rank)` and
/// `expert(expert)`.
template <class Words>
TOKENYARD_DEVICE void greet_rank(const RailCall& call, const Words& words, const Members& locals,
                                 uint32_t rank) {
  const Rails& rails = call.rails;
  const WindowLayout& layout = rails.layout;
  const uint32_t self = call.params.rank;
  const auto say = [&](size_t offset, uint32_t value) {
    store<Order::relaxed, Scope::sys>(rails.word<Stamped>(rank, offset),
                                      Stamped{call.epoch(), value});
  };
  for (uint32_t word = warp::lane(); word < kSourceWords; word += kWarpLanes)
    say(layout.ready_word(self, word), words.ready_word(word, rails.hosts.host));
  if (!words.counts()) return;
  for (uint32_t word = warp::lane(); word < refusal_words(words.refuses()); word += kWarpLanes)
    say(layout.refusal(self, word), words.refusal(word));
  // A host has at most as many ranks as a warp has lanes.
  const uint32_t of = warp::lane(), local = locals.at(of);
  if (of < locals.size()) say(layout.count(self, of), words.count(local));
  const ExpertPartition& partition = words.partition();
  for (uint32_t expert = warp::lane(); expert < partition.held_by(rank); expert += kWarpLanes)
    say(layout.expert(self, expert), words.expert(partition.first_of(rank) + expert));
}

/// Greets the ranks of this host, this one included. Called by one warp of the rank. The fence
/// releases what this rank did before the call to the memory that its words announce.
template <class Words>
TOKENYARD_DEVICE void greet_host(const RailCall& call, const Words& words) {
  fence<Scope::sys>();
  const Members locals(call.rails.hosts, call.rails.hosts.host);
  for (uint32_t place = 0; place < locals.size(); ++place)
    greet_rank(call, words, locals, locals.at(place));
}

/// Writes the greeting for a rail peer. Called by one warp, which then synchronizes.
template <class Words>
TOKENYARD_DEVICE void write_greeting(const RailCall& call, const Words& words, uint32_t link) {
  const Rails& rails = call.rails;
  const GreetingLayout& layout = rails.layout.greeting;
  const uint32_t host = rails.links[link].host;
  auto* const to = rails.mine<uint32_t>(rails.layout.greeting_out(link));
  for (uint32_t word = warp::lane(); word < kSourceWords; word += kWarpLanes)
    to[GreetingLayout::ready_word(word)] = words.ready_word(word, host);
  if (!words.counts()) return;
  for (uint32_t word = warp::lane(); word < kRefusalWords; word += kWarpLanes)
    to[GreetingLayout::refusal(word)] = words.refusal(word);
  uint32_t number = 0;
  const ExpertPartition& partition = words.partition();
  const Members members(rails.hosts, host);
  for (uint32_t place = 0; place < members.size(); ++place) {
    const uint32_t rank = members.at(place), held = partition.held_by(rank);
    if (warp::lane() == 0) to[GreetingLayout::count(place)] = words.count(rank);
    for (uint32_t expert = warp::lane(); expert < held; expert += kWarpLanes)
      to[layout.expert(number + expert)] = words.expert(partition.first_of(rank) + expert);
    number += held;
  }
}

/// Posts the greeting. Called by the thread that uses the link's queue.
TOKENYARD_DEVICE bool put_greeting(const RailCall& call, uint32_t link) {
  const Rails& rails = call.rails;
  const Link& to = rails.links[link];
  const NetworkQueue queue = rails.queues.of(to.rank, rails.fill_queue);
  constexpr auto kPut = static_cast<uint32_t>(Phase::greeting_put);
  const auto parity = static_cast<uint32_t>(call.workspace().calls & 1);
  const NetworkSource source{.key = rails.key,
                             .bytes = rails.layout.greeting.words() * uint32_t{sizeof(uint32_t)},
                             .from = rails.mine<std::byte>(rails.layout.greeting_out(link))};
  return queue.put_and_signal(call.far_deadline, kPut,
                              to.window + rails.layout.greeting_in(to.there, parity), source,
                              to.window + rails.layout.greeted(to.there), 1);
}

/// Greets the rail peers whose links this block coordinates. Called by one warp.
template <class Words>
TOKENYARD_DEVICE void greet_rails(const RailCall& call, const Words& words) {
  for (uint32_t link = block::index(); link < call.links(); link += grid::blocks())
    if (call.rails.links[link].forwards) write_greeting(call, words, link);
  warp::sync();
  each_own_link(call, [&](uint32_t link) {
    if (call.rails.links[link].forwards) put_greeting(call, link);
  });
}

/// Copies words into shared memory, several loads at once. Called by one warp, which synchronizes.
TOKENYARD_DEVICE void fetch_words(uint32_t* to, const uint32_t* from, uint32_t count) {
  constexpr uint32_t kAtOnce = 8;
  // Those that read what was there before have done so.
  warp::sync();
  for (uint32_t first = warp::lane(); first < count; first += kAtOnce * kWarpLanes) {
    uint32_t words[kAtOnce] = {};
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i)
      if (first + i * kWarpLanes < count) words[i] = from[first + i * kWarpLanes];
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kAtOnce; ++i)
      if (first + i * kWarpLanes < count) to[first + i * kWarpLanes] = words[i];
  }
  warp::sync();
}

/// Passes a source's greeting, which has arrived, on to the ranks of this host. `here`: shared
/// memory for its words. Called by one warp.
TOKENYARD_DEVICE void pass_on(const RailCall& call, const ExpertPartition& partition, bool counts,
                              uint32_t link, uint32_t* here) {
  const Rails& rails = call.rails;
  const WindowLayout& layout = rails.layout;
  const uint64_t calls = call.workspace().calls;
  const uint32_t source = rails.links[link].rank;
  // Passes on what the signal has acquired: the source has ended its call before, so whoever hears
  // it may overwrite what that one read.
  fence<Scope::sys>();
  fetch_words(here,
              rails.mine<uint32_t>(layout.greeting_in(link, static_cast<uint32_t>(calls & 1))),
              counts ? layout.greeting.words() : kSourceWords);
  const bool refuses = counts && here[GreetingLayout::refusal(0)] != 0;
  const Members locals(rails.hosts, rails.hosts.host);
  uint32_t number = 0;
  for (uint32_t place = 0; place < locals.size(); ++place) {
    const uint32_t rank = locals.at(place), held = partition.held_by(rank);
    const auto say = [&](size_t offset, uint32_t word) {
      store<Order::relaxed, Scope::sys>(rails.word<Stamped>(rank, offset),
                                        Stamped{call.epoch(), here[word]});
    };
    for (uint32_t word = warp::lane(); word < kSourceWords; word += kWarpLanes)
      say(layout.ready_word(source, word), GreetingLayout::ready_word(word));
    if (!counts) continue;
    for (uint32_t word = warp::lane(); word < refusal_words(refuses); word += kWarpLanes)
      say(layout.refusal(source, word), GreetingLayout::refusal(word));
    for (uint32_t of = warp::lane(); of < locals.size(); of += kWarpLanes)
      say(layout.count(source, of), GreetingLayout::count(of));
    for (uint32_t expert = warp::lane(); expert < held; expert += kWarpLanes)
      say(layout.expert(source, expert), layout.greeting.expert(number + expert));
    number += held;
  }
}

/// Waits for a greeting of one of some links, a bit per link; returns its link, or kNone if the
/// call has failed. Called by one thread.
TOKENYARD_DEVICE uint32_t await_greeting(const RailCall& call, uint32_t links) {
  const uint64_t needed = call.workspace().calls + 1;
  Awaited what{.phase = static_cast<uint32_t>(Phase::greeting), .expected = needed};
  uint32_t found = kNone;
  wait_until(call.deadline, what, [&] {
    for (uint32_t left = links; left != 0 && found == kNone; left &= left - 1) {
      const uint32_t link = first_bit(left);
      // Acquires the greeting.
      const uint64_t seen = load<Order::acquire, Scope::sys>(
          call.rails.mine<uint64_t>(call.rails.layout.greeted(link)));
      if (seen >= needed) found = link;
      if (left != links) continue;
      what.rank = call.rails.links[link].rank;
      what.seen = seen;
    }
    return found != kNone;
  });
  return found;
}

/// Tells the ranks of this host of sources that have said goodbye rather than greeted: no word of
/// theirs will come, and only their rail peer can know it. Called by one warp, of a failed call.
TOKENYARD_DEVICE void pass_on_goodbyes(const RailCall& call, uint32_t links) {
  const Rails& rails = call.rails;
  for (uint32_t left = links; left != 0; left &= left - 1) {
    const uint32_t link = first_bit(left), source = rails.links[link].rank;
    const Awaited what{.phase = static_cast<uint32_t>(Phase::greeting), .rank = source};
    if (host_asks(call.params.wait_context, what) != Failure::left) continue;
    const uint64_t greeted =
        load<Order::relaxed, Scope::sys>(rails.mine<uint64_t>(rails.layout.greeted(link)));
    if (greeted > call.workspace().calls) continue;
    // A lane per word and rank. Relaxed: the words release no data.
    const uint32_t words = rails.hosts.locals * kSourceWords;
    for (uint32_t word = warp::lane(); word < words; word += kWarpLanes)
      store<Order::relaxed, Scope::sys>(
          rails.word<Stamped>(rails.hosts.local(word / kSourceWords),
                              rails.layout.ready_word(source, word % kSourceWords)),
          Stamped{call.epoch(), kSourceLeft});
  }
}

/// Passes on the greetings of the links that this block coordinates, as they come. `here`: shared
/// memory for the words of one. Called by one warp.
TOKENYARD_DEVICE bool pass_on_greetings(const RailCall& call, const ExpertPartition& partition,
                                        bool counts, uint32_t* here) {
  uint32_t links = 0;
  for (uint32_t link = block::index(); link < call.links(); link += grid::blocks())
    if (call.rails.links[link].sends) links |= 1u << link;
  while (links != 0) {
    const uint32_t link = warp::once([&] { return await_greeting(call, links); });
    // Passes on what one lane has acquired.
    warp::sync();
    if (link == kNone) {
      pass_on_goodbyes(call, links);
      return false;
    }
    pass_on(call, partition, counts, link, here);
    links &= ~(1u << link);
  }
  return true;
}

/// Waits for the ready words of some sources, and leaves them in shared memory. Called by one warp,
/// which then synchronizes. Returns false if the call has failed.
template <class IsAwaited>
TOKENYARD_DEVICE bool await_words(const RailCall& call, const throughput::ReadyWords& ready_words,
                                  IsAwaited is_awaited) {
  const uint64_t begun_ns = now_ns();
  const throughput::Statistics& statistics = call.params.statistics;
  bool all = true;
  for (uint32_t source = warp::lane(); source < call.params.ranks; source += kWarpLanes) {
    uint32_t values[kWordsAtOnce] = {};
    const bool absent = call.params.absent.contains(source);
    if (!absent && !is_awaited(source)) continue;
    if (!absent) {
      all = call.await_words(Phase::ready, source, call.rails.layout.ready_word(source, 0),
                             kSourceWords, values) &&
            all;
      if (values[kSlotsComing] == kSourceLeft) {
        call.deadline.fail(Failure::left, Awaited{.phase = static_cast<uint32_t>(Phase::ready),
                                                  .rank = source,
                                                  .expected = call.epoch()});
        all = false;
      }
      throughput::count_up(statistics, statistics.waited_for(source), now_ns() - begun_ns);
    }
    TOKENYARD_UNROLL
    for (uint32_t word = 0; word < throughput::kReadyWords; ++word)
      ready_words.of(static_cast<throughput::ReadyWord>(word), source) = values[word];
  }
  return warp::all(all);
}

/// Waits for the ready words of the ranks of this host. Called by one warp.
TOKENYARD_DEVICE bool await_host_words(const RailCall& call,
                                       const throughput::ReadyWords& ready_words) {
  const Hosts& hosts = call.rails.hosts;
  const bool all = await_words(call, ready_words,
                               [&](uint32_t rank) { return hosts.host_of[rank] == hosts.host; });
  warp::sync();
  return all;
}
/// Waits for those of the other ranks, after the host's: a rank that passes nothing on is named
/// rather than those whose words it holds.
TOKENYARD_DEVICE bool await_other_words(const RailCall& call,
                                        const throughput::ReadyWords& ready_words) {
  const Hosts& hosts = call.rails.hosts;
  const bool all = await_words(call, ready_words,
                               [&](uint32_t rank) { return hosts.host_of[rank] != hosts.host; });
  warp::sync();
  return all;
}
TOKENYARD_DEVICE bool await_all_words(const RailCall& call,
                                      const throughput::ReadyWords& ready_words) {
  return await_host_words(call, ready_words) && await_other_words(call, ready_words);
}

/// Ends the receiver's part: it reads its window no more, but for the words that this awaits.
TOKENYARD_DEVICE void end_receive(const RailCall& call) {
  end_part(call);
  await_finished(call);
}

}  // namespace tokenyard::internode
