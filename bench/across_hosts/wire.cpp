#include "bench/across_hosts/wire.hpp"

#include <algorithm>
#include <chrono>
#include <deque>

namespace tokenyard::bench {

namespace {

uint32_t acquire(const uint32_t& word) {
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}
void release(uint32_t& word, uint32_t value) {
  __atomic_store_n(&word, value, __ATOMIC_RELEASE);
}

/// One direction of the rank's link.
struct Direction {
  double free_us = 0, idle_us = 0, bytes = 0, first_us = 0;

  /// Returns when bytes that come now have gone.
  double reserve(double now, double bytes_now, double gb_s, bool are_slots) {
    if (now > free_us) {
      if (first_us != 0) idle_us += now - free_us;
      free_us = now;
    }
    if (are_slots && first_us == 0) first_us = now;
    bytes += bytes_now;
    return free_us += gb_s == 0 ? 0 : bytes_now / (gb_s * 1000);
  }
};

/// A move that waits for its time.
struct Timed {
  double at_us;
  Move move;
};

struct LinkState {
  uint32_t taken = 0, drained = 0;  ///< requests
  uint32_t out = 0, in = 0;         ///< slots that have set out
  uint32_t credit = 0, credits_coming = 0;
  std::deque<Timed> leaving, credits, arriving;
  std::deque<std::pair<double, uint32_t>> credits_in;
  bool greeted = false;
};

}  // namespace

double Wire::now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Wire::play() {
  const std::vector<LinkTraffic>& links = traffic_.links;
  const auto count = static_cast<uint32_t>(links.size());
  const uint32_t of_words = 2 * count;
  std::vector<LinkState> states(count);
  for (uint32_t i = 0; i < count; ++i) {
    states[i].taken = links[i].fill->posted;
    states[i].drained = links[i].drain->posted;
  }
  Direction out, in;
  double greeted_us = 0, all_in_us = 0;
  bool words_later = false, finished = false, slots_go = false;
  // The link looks at most so far ahead that a later put of another queue need not wait.
  constexpr double kAhead = 20;
  ready_ = true;
  uint32_t left = 0;
  // Credits that rank 0 has posted last may come after its kernel has ended.
  constexpr double kGraceUs = 500'000;
  double stopped_us = 0;
  bool all_done = false;
  while (!all_done || !stops_.load(std::memory_order_relaxed)) {
    if (stops_.load(std::memory_order_relaxed)) {
      if (stopped_us == 0) stopped_us = now_us();
      if (now_us() > stopped_us + kGraceUs) break;
    }
    left = 0;
    uint32_t credits_left = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const LinkTraffic& link = links[i];
      LinkState& state = states[i];
      const double now = now_us();
      // Out: one put and its signal.
      if (acquire(link.fill->posted) - state.taken >= 2) {
        const NetworkRequest put = link.fill->ring[state.taken % QueuePair::kSlots];
        const NetworkRequest signal = link.fill->ring[(state.taken + 1) % QueuePair::kSlots];
        if (put.kind != NetworkRequest::Kind::put || signal.kind != NetworkRequest::Kind::signal)
          ++outcome_.wrong;
        state.taken += 2;
        ++outcome_.puts;
        const uint32_t bytes = put.sources[0].bytes;
        const auto* const from = static_cast<const std::byte*>(put.sources[0].from);
        const bool is_greeting = !state.greeted;
        const double end = out.reserve(now, bytes, traffic_.gb_s, !is_greeting);
        Move move{.word = &link.fill->completed, .value = state.taken, .word_bytes = 4};
        if (is_greeting) {
          state.greeted = true;
          if (greeted_us == 0) {
            greeted_us = outcome_.greeted_at_us = now;
            for (const Move& word : traffic_.words) mover_.issue(of_words, word);
          }
          const double come =
              in.reserve(now, static_cast<double>(link.greeting.bytes), traffic_.gb_s, false);
          state.arriving.push_back({come + traffic_.latency_us, link.greeting});
        } else {
          slots_go = true;
          const uint32_t slots = bytes / link.slot_bytes;
          const uint64_t place = (link.first_out + state.out) % link.capacity;
          if (bytes % link.slot_bytes != 0 || from != link.stage + place * link.slot_bytes ||
              place + slots > link.capacity || state.out + slots > link.slots_out ||
              signal.addend != slots) {
            ++outcome_.wrong;
          } else {
            if (state.out == 0) outcome_.first_slots = std::max(outcome_.first_slots, slots);
            move.from = from;
            move.to = link.outbox + size_t{state.out} * link.slot_bytes;
            move.bytes = bytes;
            state.out += slots;
            state.credits.push_back({end + traffic_.credit_us,
                                     {.word = link.credited, .value = link.first_out + state.out}});
          }
        }
        state.leaving.push_back({end, move});
      }
      for (; !state.leaving.empty() && now >= state.leaving.front().at_us;
           state.leaving.pop_front())
        mover_.issue(2 * i, state.leaving.front().move);
      for (; !state.credits.empty() && now >= state.credits.front().at_us;
           state.credits.pop_front())
        mover_.issue(2 * i, state.credits.front().move);
      // Credits of rank 0.
      for (const uint32_t posted = acquire(link.drain->posted); state.drained != posted;) {
        const NetworkRequest& request = link.drain->ring[state.drained % QueuePair::kSlots];
        if (request.kind != NetworkRequest::Kind::signal) ++outcome_.wrong;
        state.credits_coming += static_cast<uint32_t>(request.addend);
        outcome_.last_credit_at_us = now;
        state.credits_in.emplace_back(now + traffic_.latency_us, state.credits_coming);
        release(link.drain->completed, ++state.drained);
      }
      for (; !state.credits_in.empty() && now >= state.credits_in.front().first;
           state.credits_in.pop_front())
        state.credit = state.credits_in.front().second;
      // In: one chunk.
      const uint32_t place = static_cast<uint32_t>((link.first_in + state.in) % link.capacity);
      const uint32_t slots =
          std::min({link.chunk, link.slots_in - state.in, link.capacity - place});
      if (slots_go && slots != 0 && state.in + slots <= state.credit + link.capacity &&
          in.free_us < now + kAhead) {
        const double end = in.reserve(now, double(slots) * link.slot_bytes, traffic_.gb_s, true);
        const size_t at = size_t{state.in} * link.slot_bytes;
        state.in += slots;
        state.arriving.push_back({end,
                                  {.from = link.inbox + at,
                                   .to = link.ring + size_t{place} * link.slot_bytes,
                                   .bytes = size_t{slots} * link.slot_bytes,
                                   .word = link.arrived,
                                   .value = link.first_in + state.in}});
      }
      for (; !state.arriving.empty() && now >= state.arriving.front().at_us;
           state.arriving.pop_front()) {
        mover_.issue(2 * i + 1, state.arriving.front().move);
        if (state.arriving.front().move.word == link.arrived) outcome_.last_slot_at_us = now;
      }
      left += link.slots_out - state.out + link.slots_in - state.in +
              static_cast<uint32_t>(state.leaving.size() + state.arriving.size()) +
              (state.greeted ? 0 : 1);
      credits_left +=
          link.slots_in - state.credits_coming + static_cast<uint32_t>(state.credits.size());
    }
    const double now = now_us();
    if (greeted_us != 0 && !words_later && now >= greeted_us + traffic_.latency_us) {
      words_later = true;
      for (const Move& word : traffic_.words_later) mover_.issue(of_words, word);
    }
    if (left == 0 && all_in_us == 0) all_in_us = now;
    // The other ranks of the host end about as rank 0 does.
    if (all_in_us != 0 && !finished && now >= all_in_us + traffic_.latency_us) {
      finished = true;
      for (const Move& word : traffic_.finished) mover_.issue(of_words, word);
    }
    all_done = finished && credits_left == 0;
  }
  for (uint32_t i = 0; i < count; ++i)
    if (states[i].out != links[i].slots_out || states[i].in != links[i].slots_in ||
        states[i].credits_coming != links[i].slots_in)
      ++outcome_.wrong;
  outcome_.complete = all_done;
  outcome_.bytes_out = out.bytes;
  outcome_.bytes_in = in.bytes;
  outcome_.idle_out_us = out.idle_us;
  outcome_.idle_in_us = in.idle_us;
  outcome_.out_us = out.free_us - out.first_us;
  outcome_.in_us = in.free_us - in.first_us;
}

WireOutcome Wire::end() {
  stops_ = true;
  thread_.join();
  return outcome_;
}

}  // namespace tokenyard::bench
