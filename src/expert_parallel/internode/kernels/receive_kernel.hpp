/// The receiver of a dispatch, a warp of block 0: it learns what every rank does and how many rows
/// each sends, decides with all other ranks whether the call is refused, and tells the rank's other
/// warps and its host.
#pragma once

#include "expert_parallel/internode/kernels/deliveries_kernel.hpp"
#include "expert_parallel/internode/kernels/greetings_kernel.hpp"
#include "expert_parallel/throughput/kernels/report_kernel.hpp"

namespace tokenyard::internode {

/// The words of a rank about its dispatch.
struct DispatchWords {
  const Dispatch& dispatch;

  TOKENYARD_DEVICE bool counts() const { return dispatch.params.counts(); }
  TOKENYARD_DEVICE const ExpertPartition& partition() const { return dispatch.input().partition; }
  TOKENYARD_DEVICE uint32_t ready_word(uint32_t word, uint32_t host) const {
    if (word != kSlotsComing)
      return throughput::ready_value(dispatch.call.params, static_cast<throughput::ReadyWord>(word),
                                     dispatch.call.shared.call.route_epoch);
    if (host == dispatch.hosts().host) return dispatch.input().readiness.words != nullptr ? 1 : 0;
    return counts() ? dispatch.slots_to(host) : 0;
  }
  TOKENYARD_DEVICE bool refuses() const { return dispatch.refuses(); }
  TOKENYARD_DEVICE uint32_t refusal(uint32_t word) const {
    if (!refuses()) return 0;
    const CountedBlocks counted(dispatch.call, dispatch.call.shared.refusing_block,
                                dispatch.params.rails.columns.refusal(word));
    return counted.values[0];
  }
  TOKENYARD_DEVICE uint32_t count(uint32_t rank) const { return dispatch.tail.totals()[rank]; }
  TOKENYARD_DEVICE uint32_t expert(uint32_t expert) const {
    return dispatch.tail.totals()[dispatch.params.rails.columns.expert(expert)];
  }
};

/// Why a dispatch moves no rows, alike on all ranks.
struct Verdict {
  uint32_t refusing_rank = kNone;  ///< first rank with a bad token
  uint32_t differing_rank = kNone;
  Full full = {};  ///< first rank that would receive more rows than it has places for

  TOKENYARD_DEVICE bool refused() const {
    return refusing_rank != kNone || differing_rank != kNone || full.rank != Full::kNobody;
  }
};

class Receiver {
 public:
  TOKENYARD_DEVICE explicit Receiver(const Dispatch& dispatch)
      : dispatch_(dispatch), call_(dispatch.call), layout_(dispatch.params.rails.layout) {}

  TOKENYARD_DEVICE void receive() {
    greet_host(call_, DispatchWords{dispatch_});
    if (!await_all_words(call_, dispatch_.tail.ready_words())) return;
    const bool counts = dispatch_.params.counts();
    if (!warp::all(throughput::compare_calls(call_.params, dispatch_.tail.ready_words(),
                                             call_.deadline, throughput::Phase::dispatch_ready,
                                             ThreadGroup::of_warp(),
                                             counts ? &call_.shared.differing_rank : nullptr)))
      return;
    warp::sync();
    Verdict verdict;
    if (counts && !read_counts(verdict)) return;
    warp::sync();
    // Release: orders the route and the words of this window before the mark. It is behind the
    // other lanes' stores, which the warp has synchronized.
    if (warp::elect())
      store<Order::release, Scope::gpu>(
          &call_.workspace().known,
          Stamped{call_.epoch(), verdict.refused() ? uint32_t{1} : uint32_t{0}});
    if (counts) {
      // No warp waits for these.
      read_experts();
      if (warp::any(failed_)) return;
      warp::sync();
      report(verdict);
    }
    if (!verdict.refused() && !publish_arrivals(dispatch_)) return;
    end_receive(call_);
  }

 private:
  TOKENYARD_DEVICE const throughput::RouteTable& table() const { return dispatch_.input().table; }

  /// Returns a word about each of 32 sources, a lane each; 0 for those that do not exist
  /// or are absent.
  template <class Offset>
  TOKENYARD_DEVICE uint32_t word_of(uint32_t source, Offset offset) {
    if (source >= call_.params.ranks || call_.params.absent.contains(source)) return 0;
    const Stamped seen = call_.await_word(Phase::ready, source, offset(source));
    failed_ = failed_ || seen.epoch != call_.epoch();
    return seen.value;
  }

  /// Reads all counts into the route. Returns false if the call has failed.
  TOKENYARD_DEVICE bool read_counts(Verdict& verdict) {
    const uint32_t ranks = call_.params.ranks;
    for (uint32_t first = 0; first < ranks; first += kWarpLanes) {
      const uint32_t source = first + warp::lane();
      const bool refuses =
          word_of(source, [&](uint32_t of) { return layout_.refusal(of, 0); }) != 0;
      // All of it: a word that no rank awaits might come after this call.
      for (uint32_t word = 1; refuses && word < kRefusalWords; ++word)
        word_of(source, [&](uint32_t of) { return layout_.refusal(of, word); });
      const uint32_t refusing = warp::ballot(refuses);
      if (refusing != 0 && verdict.refusing_rank == kNone)
        verdict.refusing_rank = first + first_bit(refusing);
    }
    verdict.differing_rank = call_.shared.differing_rank;
    for (uint32_t place = 0; place < dispatch_.hosts().locals; place += kWordsAtOnce)
      // A copy: device code cannot refer to the constant, as std::min does.
      read_rows(place, std::min(uint32_t{kWordsAtOnce}, dispatch_.hosts().locals - place));
    read_slots();
    if (warp::elect()) table().epoch() = call_.epoch();
    if (warp::any(failed_)) return false;
    // All ranks know these words alike.
    return verdict.refused() || !places_are_limited() || judge_places(verdict);
  }

  /// Returns the places of a rank, as far as rows may need them.
  TOKENYARD_DEVICE uint32_t places_of(uint32_t rank) const {
    const uint32_t most = call_.params.ranks * dispatch_.params.route.tokens_max;
    const uint32_t named = dispatch_.tail.ready_words().of(throughput::ReadyWord::places, rank);
    return named == 0 || named > most ? most : named;
  }

  /// Returns whether more rows could come to some rank than it has places for.
  TOKENYARD_DEVICE bool places_are_limited() const {
    const uint32_t most = call_.params.ranks * dispatch_.params.route.tokens_max;
    bool limited = false;
    for (uint32_t rank = warp::lane(); rank < call_.params.ranks; rank += kWarpLanes)
      if (!call_.params.absent.contains(rank)) limited = limited || places_of(rank) < most;
    return warp::any(limited);
  }

  /// Finds out with all ranks whether rows fit everywhere: a rank knows the rows of its own host,
  /// and tells its rail peers. Takes a latency of the network. Called by all lanes; returns false
  /// if the call has failed.
  TOKENYARD_DEVICE bool judge_places(Verdict& verdict) {
    warp::sync();
    const Full here = full_here();
    signal_verdict(here);
    const Full there = await_verdicts();
    verdict.full = here.rank < there.rank ? here : there;
    return !warp::any(failed_);
  }

  TOKENYARD_DEVICE Full full_here() const {
    Full full;
    if (warp::lane() < dispatch_.hosts().locals) {
      const uint32_t rank = dispatch_.hosts().local(warp::lane());
      full = {rank, table().rows_on()[rank]};
      if (full.rows <= places_of(rank)) full = {};
    }
    return first_of(full);
  }
  /// Returns that of the lane with the first rank. Called by all lanes.
  TOKENYARD_DEVICE static Full first_of(const Full& full) {
    const uint32_t rank = warp::min(full.rank);
    return {rank, warp::shuffle(full.rows, first_bit(warp::ballot(full.rank == rank)))};
  }

  /// Signals the sources that this rank forwards for. Their queues are the coordinator's, which
  /// uses them once the counts are known.
  TOKENYARD_DEVICE void signal_verdict(const Full& full) const {
    constexpr auto kJudged = static_cast<uint32_t>(Phase::judged);
    for (uint32_t number = warp::lane(); number < call_.links(); number += kWarpLanes) {
      const Link& link = call_.rails.links[number];
      if (!link.sends) continue;
      const NetworkQueue queue = call_.rails.queues.of(link.rank, call_.rails.drain_queue);
      if (full.rank != Full::kNobody)
        queue.signal(call_.far_deadline, kJudged, link.window + layout_.excess(link.there),
                     full.rows);
      queue.signal(call_.far_deadline, kJudged, link.window + layout_.judged(link.there),
                   full.signal());
    }
  }
  TOKENYARD_DEVICE Full await_verdicts() {
    const uint64_t needed = call_.workspace().judged + 1;
    Full full;
    for (uint32_t number = warp::lane(); number < call_.links(); number += kWarpLanes) {
      const Link& link = call_.rails.links[number];
      if (!link.forwards) continue;
      Awaited what{
          .phase = static_cast<uint32_t>(Phase::judged), .rank = link.rank, .expected = needed};
      const auto* const judged = call_.rails.mine<uint64_t>(layout_.judged(number));
      const auto* const excess = call_.rails.mine<uint64_t>(layout_.excess(number));
      const bool come = wait_until(call_.far_deadline, what, [&] {
        // Relaxed: signals carry no data but themselves, and come in any order.
        const uint64_t word = load<Order::relaxed, Scope::sys>(judged);
        what.seen = Full::calls_of(word);
        if (what.seen < needed) return false;
        const uint32_t rank = Full::rank_of(word);
        if (rank == Full::kNobody) return true;
        const auto rows = static_cast<uint32_t>(load<Order::relaxed, Scope::sys>(excess));
        if (rank < full.rank && rows != 0) full = {rank, rows};
        return rows != 0;
      });
      failed_ = failed_ || !come;
    }
    warp::sync();
    if (warp::elect()) call_.workspace().judged = needed;
    return first_of(full);
  }

  /// Finds the first row of each source on some ranks of this host.
  TOKENYARD_DEVICE void read_rows(uint32_t first_place, uint32_t places) {
    const uint32_t ranks = call_.params.ranks;
    uint32_t before[kWordsAtOnce] = {};
    for (uint32_t first = 0; first < ranks; first += kWarpLanes) {
      const uint32_t source = first + warp::lane();
      uint32_t rows[kWordsAtOnce] = {};
      if (source < ranks && !call_.params.absent.contains(source))
        failed_ = !call_.await_words(Phase::ready, source, layout_.count(source, first_place),
                                     places, rows) ||
                  failed_;
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kWordsAtOnce; ++i) {
        if (i >= places) continue;
        const uint32_t row = before[i] + warp::exclusive_sum(rows[i]);
        before[i] += warp::sum(rows[i]);
        if (source >= ranks) continue;
        dispatch_.params.route.first_row(source, first_place + i) = row;
        if (first_place + i == dispatch_.hosts().place) table().rows_from()[source] = rows[i];
      }
    }
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kWordsAtOnce; ++i)
      if (i < places && warp::elect())
        table().rows_on()[dispatch_.hosts().local(first_place + i)] = before[i];
  }

  TOKENYARD_DEVICE void read_experts() {
    const throughput::Statistics& statistics = call_.params.statistics;
    for (uint32_t expert = 0; expert < dispatch_.input().local_experts; ++expert) {
      uint32_t tokens = 0;
      for (uint32_t first = 0; first < call_.params.ranks; first += kWarpLanes)
        tokens += warp::sum(
            word_of(first + warp::lane(), [&](uint32_t of) { return layout_.expert(of, expert); }));
      if (!warp::elect()) continue;
      table().tokens_per_expert()[expert] = tokens;
      throughput::count_up(statistics, statistics.tokens_of(expert), tokens);
    }
  }

  TOKENYARD_DEVICE void read_slots() {
    for (uint32_t number = warp::lane(); number < call_.links(); number += kWarpLanes) {
      const Link& link = call_.rails.links[number];
      const RailRoute& route = dispatch_.params.route;
      route.slots_out(number) = link.forwards ? dispatch_.slots_to(link.host) : 0;
      route.slots_in(number) =
          link.sends ? word_of(link.rank,
                               [&](uint32_t of) { return layout_.ready_word(of, kSlotsComing); })
                     : 0;
    }
    warp::sync();
  }

  /// Tells the host the counts, or why there are no rows. If no host waits for them, a refusal
  /// fails the object: nothing else could stop the calls behind this one.
  TOKENYARD_DEVICE void report(const Verdict& verdict) {
    using throughput::publish;
    throughput::CountsRecord& record = *dispatch_.input().record;
    if (!dispatch_.input().awaited && !verdict.refused()) return;
    const uint32_t ranks = call_.params.ranks;
    if (!verdict.refused()) {
      for (uint32_t rank = warp::lane(); rank < ranks; rank += kWarpLanes)
        publish(record.rows_from()[rank], table().rows_from()[rank]);
      for (uint32_t expert = warp::lane(); expert < dispatch_.input().local_experts;
           expert += kWarpLanes)
        publish(record.tokens_per_expert(ranks)[expert], table().tokens_per_expert()[expert]);
    }
    if (warp::elect()) report_refusal(record, verdict);
    warp::sync();
    if (!warp::elect()) return;
    // Release: orders the record's other words before its epoch.
    store<Order::release, Scope::sys>(&record.epoch, call_.epoch());
    if (verdict.refused() && !dispatch_.input().awaited)
      call_.deadline.fail(
          Failure::refused,
          Awaited{.phase = static_cast<uint32_t>(throughput::Phase::dispatch_refusal),
                  .rank = call_.params.rank});
  }

  TOKENYARD_DEVICE void report_refusal(throughput::CountsRecord& record,
                                       const Verdict& verdict) const {
    using throughput::publish;
    if (!verdict.refused())
      return publish(record.refusal, static_cast<uint32_t>(RefusalKind::none));
    if (verdict.differing_rank != kNone) {
      const throughput::ReadyWords ready_words = dispatch_.tail.ready_words();
      const uint32_t rank = verdict.differing_rank, first = call_.params.first_present;
      const throughput::ReadyWord word = throughput::differing_word(ready_words, first, rank);
      publish(record.refusal, static_cast<uint32_t>(RefusalKind::format));
      publish(record.rank, rank);
      publish(record.token, static_cast<uint32_t>(word));
      publish(record.id_low, ready_words.of(word, rank));
      return publish(record.id_high, ready_words.of(word, first));
    }
    if (verdict.refusing_rank == kNone) return report_places(record, verdict.full);
    const uint32_t rank = verdict.refusing_rank;
    const auto read = [&](uint32_t word) {
      return call_.await_word(Phase::ready, rank, layout_.refusal(rank, word)).value;
    };
    const uint32_t token_and_kind = read(0);
    publish(record.refusal, token_and_kind & 3);
    publish(record.rank, rank);
    publish(record.token, token_and_kind >> 2);
    publish(record.id_low, read(1));
    publish(record.id_high, read(2));
  }

  TOKENYARD_DEVICE void report_places(throughput::CountsRecord& record, const Full& full) const {
    using throughput::publish;
    publish(record.refusal, static_cast<uint32_t>(RefusalKind::overflow));
    publish(record.rank, full.rank);
    publish(record.token, places_of(full.rank));
    publish(record.id_low, full.rows);
    publish(record.id_high, 0);
  }

  const Dispatch& dispatch_;
  const RailCall& call_;
  const WindowLayout& layout_;
  bool failed_ = false;
};

}  // namespace tokenyard::internode
