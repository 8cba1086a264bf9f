#include "bench/across_hosts_model/wire.hpp"

#include <algorithm>
#include <cstring>

#include "bench/harness/wire_network.hpp"
#include "fabric/bootstrap.hpp"

namespace tokenyard::bench {

namespace {

/// Bytes of a queue's turn on the link.
constexpr double kBurst = 16384;

}  // namespace

Wire::Wire(uint32_t ranks, uint32_t queues_per_peer, const Costs& costs)
    : ranks_(ranks),
      queues_per_peer_(queues_per_peer),
      queues_of_rank_(ranks * queues_per_peer),
      costs_(costs),
      pairs_(size_t{ranks} * queues_of_rank_),
      ends_(pairs_.size()),
      keys_(ranks),
      arenas_(ranks),
      arena_bytes_(ranks),
      queues_(pairs_.size()),
      cards_(ranks) {
  for (size_t i = 0; i < pairs_.size(); ++i) {
    const auto rank = static_cast<uint32_t>(i / queues_of_rank_);
    const auto number = static_cast<uint32_t>(i % queues_of_rank_);
    pairs_[i].rank = rank;
    pairs_[i].peer = number / queues_per_peer;
    pairs_[i].number = number;
    ends_[i] = {.pair = &pairs_[i],
                .mlx5 = nullptr,
                .doorbell = nullptr,
                .rank = rank,
                .peer = number / queues_per_peer,
                .number = number,
                .posted = 0,
                .completed = 0};
    queues_[i].pair = &pairs_[i];
  }
  for (uint32_t rank = 0; rank < ranks; ++rank) keys_[rank] = rank + 1;
}

std::shared_ptr<Network> Wire::network(const NetworkPlace& place) {
  const uint32_t rank = place.bootstrap.rank();
  set_arena(rank, place.arena.base(), place.arena.capacity());
  return std::make_shared<WireNetwork>(NetworkQueues{.ends = &ends_[size_t{rank} * queues_of_rank_],
                                                     .arena_keys = keys_.data(),
                                                     .per_peer = queues_per_peer_},
                                       place.far);
}

void Wire::begin(Events& events, const Lengths& lengths, const std::vector<double>& rates,
                 Changed changed) {
  events_ = &events;
  changed_ = std::move(changed);
  lengths_ = lengths;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    cards_[rank] = {};
    cards_[rank].waits.resize(queues_of_rank_);
    if (!rates.empty()) cards_[rank].rate = rates[rank];
  }
  for (Queue& queue : queues_) {
    queue.landed = queue.read = 0;
    queue.begun.clear();
  }
}

bool Wire::note_post(const void* word, Time at) {
  const auto* const byte = static_cast<const std::byte*>(word);
  const auto* const begin = reinterpret_cast<const std::byte*>(pairs_.data());
  if (byte < begin || byte >= begin + pairs_.size() * sizeof(QueuePair)) return false;
  const auto number = static_cast<size_t>(byte - begin) / sizeof(QueuePair);
  const auto rank = static_cast<uint32_t>(number / queues_of_rank_);
  Card& card = cards_[rank];
  const auto of_rank = static_cast<uint32_t>(number % queues_of_rank_);
  // The card begins messages at its rate, in the order of posts, while earlier ones are on the
  // link.
  Queue& queue = queues_[number];
  for (; queue.seen != queue.pair->posted; ++queue.seen) {
    card.begun = std::max(card.begun, at) + costs_.message;
    queue.begun.push_back(card.begun);
  }
  if (!card.waits[of_rank]) {
    card.waits[of_rank] = true;
    card.waiting.push_back(of_rank);
  }
  if (!card.busy) {
    card.busy = true;
    events_->run(at, [this, rank, at] { serve(rank, at); });
  }
  return true;
}

/// Sends the next burst of a rank.
void Wire::serve(uint32_t rank, Time now) {
  Card& card = cards_[rank];
  Time soonest = UINT64_MAX;
  size_t left = card.waiting.size();
  for (; left != 0; --left) {
    const uint32_t number = card.waiting.front();
    card.waiting.pop_front();
    const Queue& queue = queues_[size_t{rank} * queues_of_rank_ + number];
    if (queue.taken == queue.pair->posted) {
      card.waits[number] = false;
      continue;
    }
    card.waiting.push_back(number);
    if (queue.under_way || queue.begun.front() <= now) break;
    soonest = std::min(soonest, queue.begun.front());
  }
  if (card.waiting.empty()) {
    card.busy = false;
    return;
  }
  if (left == 0) return events_->run(soonest, [this, rank, soonest] { serve(rank, soonest); });
  const uint32_t number = card.waiting.back();
  Queue& queue = queues_[size_t{rank} * queues_of_rank_ + number];
  QueuePair& pair = *queue.pair;
  const NetworkRequest& request = pair.ring[queue.taken % QueuePair::kSlots];
  const bool is_put = request.kind == NetworkRequest::Kind::put;
  const double whole = is_put ? lengths_.full(request.sources[0].bytes) : 8;
  if (!queue.under_way) {
    queue.under_way = true;
    queue.begun.pop_front();
    queue.left = whole;
    ++card.messages;
    if (is_put && whole > 8192 && card.first_put == 0) card.first_put = now;
  }
  const double burst = std::min(queue.left, kBurst);
  queue.left -= burst;
  const Time end = now + costs_.on_link(burst, card.rate);
  Card& peer = cards_[pair.peer];
  // The peer's link takes the bytes as they come, one sender after the other.
  const Time in = costs_.on_link(burst, peer.rate);
  const Time arrived =
      std::max(end + costs_.latency, std::max(peer.in_free, now + costs_.latency) + in);
  peer.in_free = std::max(peer.in_free, now + costs_.latency) + in;
  card.out += burst;
  peer.in += burst;
  queue.landed = std::max(queue.landed, arrived);
  if (is_put && whole > 8192) peer.last_slots = std::max(peer.last_slots, arrived);
  if (queue.left <= 0) {
    queue.under_way = false;
    std::vector<std::byte> bytes;
    if (is_put) {
      const auto* const from = static_cast<const std::byte*>(request.sources[0].from);
      bytes.assign(from, from + request.sources[0].bytes);
    }
    land(request, pair.peer, std::move(bytes), queue.landed);
    ++queue.taken;
    queue.read = std::max(queue.read, end + costs_.completion);
    events_->run(queue.read, [this, &pair, count = queue.taken, at = queue.read] {
      pair.completed = count;
      changed_(&pair.completed, at);
    });
  }
  events_->run(end, [this, rank, end] { serve(rank, end); });
}

void Wire::land(const NetworkRequest& request, uint32_t peer, std::vector<std::byte> bytes,
                Time at) {
  std::byte* const to = arenas_[peer] + request.target;
  if (request.kind == NetworkRequest::Kind::put) {
    events_->run(at,
                 [to, bytes = std::move(bytes)] { std::memcpy(to, bytes.data(), bytes.size()); });
    return;
  }
  events_->run(at, [this, to, at, addend = request.addend] {
    *reinterpret_cast<uint64_t*>(to) += addend;
    changed_(to, at);
  });
}

}  // namespace tokenyard::bench
