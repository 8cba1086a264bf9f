#include "bench/across_hosts_model/deep_ep_v1.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>

namespace tokenyard::bench {

namespace {

constexpr uint32_t kLocals = 8, kSenders = 7;
/// Bytes of a queue's turn on the link, as in our own model.
constexpr double kBurst = 16384;
/// Time between two looks of the warp that returns credits.
constexpr Time kLook = nanoseconds(500);
/// Bytes that a sender's warp has under way at once: five times sixteen bytes per lane.
constexpr uint32_t kUnderWay = 5 * 16 * 32;

/// Something with a rate, which serves one after the other.
struct Pipe {
  Time free = 0;
  Time take(Time now, Time takes) { return free = std::max(free, now) + takes; }
};

/// Messages of one queue pair.
struct Message {
  double bytes;
  std::function<void(Time)> arrived;
};
struct QueueOfCard {
  std::deque<Message> messages;
  double left = 0;
  bool waits = false;
  Time landed = 0;
};
struct CardOfRank {
  std::deque<uint32_t> turns;
  bool busy = false;
  Time begun = 0;  ///< when it may begin another message
  Time in_free = 0;
  double out = 0, in = 0;
};

class Simulation {
 public:
  Simulation(const DeepEpV1& config, const RoutedShape& shape, uint32_t row_bytes,
             const Costs& costs)
      : config_(config),
        shape_(shape),
        costs_(costs),
        hosts_(shape.hosts),
        ranks_(shape.ranks()),
        channels_(config.sms / 2),
        row_bytes_(row_bytes),
        // Behind a row: eight bytes about its source, four each of an id and a weight per choice.
        slot_bytes_((row_bytes + 8 + 8 * shape.topk + 15) / 16 * 16),
        cards_(ranks_),
        queues_(size_t{ranks_} * hosts_ * channels_ * 2),
        rings_(size_t{ranks_} * channels_ * hosts_),
        links_(rings_.size()),
        channels_of_(size_t{ranks_} * channels_),
        forwarders_(channels_of_.size() * kLocals),
        receivers_(channels_of_.size() * kLocals),
        nvlink_out_(ranks_),
        nvlink_in_(ranks_),
        ended_(ranks_, 0) {
    if (shape.locals != kLocals) throw InvalidArgument("locals", "8", std::to_string(shape.locals));
    for (uint32_t rank = 0; rank < ranks_; ++rank) lay_out(rank);
  }

  DeepEpV1Time run() {
    for (uint32_t rank = 0; rank < ranks_; ++rank)
      for (uint32_t channel = 0; channel < channels_; ++channel) {
        for (uint32_t warp = 0; warp < kSenders; ++warp)
          at(0, [this, rank, channel, warp](Time now) { send(rank, channel, warp, now); });
        // Counts of a channel: loaded, put, awaited.
        const Time counts = costs_.load + costs_.release_sys + costs_.latency + costs_.load;
        for (uint32_t local = 0; local < kLocals; ++local)
          at(counts, [this, rank, channel, local](Time now) {
            forward(number(rank, channel) * kLocals + local, now);
          });
      }
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      (*event.what)(event.at);
      delete event.what;
    }
    DeepEpV1Time time;
    double most = 0;
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      const double us = static_cast<double>(ended_[rank]) * 1e-6;
      time.us += us / ranks_;
      time.last_us = std::max(time.last_us, us);
      most = std::max({most, cards_[rank].out, cards_[rank].in});
    }
    time.floor_us = static_cast<double>(costs_.on_link(most)) * 1e-6;
    time.counted_gb_s = counted_ / ranks_ * row_bytes_ / time.us * 1e-3;
    time.over_link_gb_s = crossing_ / ranks_ * row_bytes_ / time.us * 1e-3;
    return time;
  }

 private:
  using What = std::function<void(Time)>;
  struct Event {
    Time at;
    uint64_t number;
    What* what;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };
  /// A ring between hosts: what has come for a rank's channel from a host.
  struct Ring {
    std::vector<uint8_t> to;  ///< [slots] ranks of this host, as bits
    uint32_t arrived = 0, credited = 0;
  };
  /// The source's side of a ring: a rank's channel to a host.
  struct Link {
    std::vector<bool> built;
    uint32_t released = 0, issued = 0, head = 0, rows = 0;
  };
  struct Channel {
    uint32_t begin = 0, end = 0;  ///< tokens
    Pipe stores[2], loads[2];     ///< of the forwarders' multiprocessor and of the senders'
    std::vector<uint32_t> waits_for_credit;  ///< warps
    std::vector<uint32_t> next;              ///< [kSenders] tokens
    std::vector<uint32_t> slots;             ///< [tokens, hosts] number in its ring
    bool coordinates = false, looks = false;
  };
  struct Forwarder {
    std::vector<uint32_t> heads;  ///< [hosts]
    uint32_t tail = 0, seen_head = 0, host = 0;
    uint32_t tail_seen = 0, batch = 0;  ///< of the batch under way
    bool waits_for_rows = false, waits_for_room = false, retired = false;
  };
  struct Receiver {
    uint32_t tail = 0, head = 0, rows = 0, upto = 0;
    uint32_t head_told = 0;  ///< as its forwarder may see it
    bool waits = true;
  };

  void at(Time time, What what) { events_.push({time, ++count_, new What(std::move(what))}); }
  uint32_t number(uint32_t rank, uint32_t channel) const { return rank * channels_ + channel; }
  uint32_t host_of(uint32_t rank) const { return rank / kLocals; }
  uint32_t rail(uint32_t host, uint32_t rank) const { return host * kLocals + rank % kLocals; }
  Ring& ring(uint32_t rank, uint32_t channel, uint32_t host) {
    return rings_[size_t{number(rank, channel)} * hosts_ + host];
  }
  Link& link(uint32_t rank, uint32_t channel, uint32_t host) {
    return links_[size_t{number(rank, channel)} * hosts_ + host];
  }

  /// Numbers a rank's rows in their rings.
  void lay_out(uint32_t rank) {
    const std::vector<uint8_t> chosen = ranks_chosen(shape_, choices_of(shape_, rank));
    const uint32_t share = (shape_.tokens + channels_ - 1) / channels_;
    for (uint32_t c = 0; c < channels_; ++c) {
      Channel& channel = channels_of_[number(rank, c)];
      channel.begin = std::min(c * share, shape_.tokens);
      channel.end = std::min(channel.begin + share, shape_.tokens);
      for (uint32_t warp = 0; warp < kSenders; ++warp) channel.next.push_back(channel.begin + warp);
      for (uint32_t token = channel.begin; token < channel.end; ++token)
        for (uint32_t host = 0; host < hosts_; ++host) {
          const uint8_t to = chosen[size_t{token} * hosts_ + host];
          Link& of = link(rank, c, host);
          channel.slots.push_back(to != 0 ? of.rows++ : kNone);
          if (to == 0) continue;
          ring(rail(host, rank), c, host_of(rank)).to.push_back(to);
          counted_ += 1;
          crossing_ += host != host_of(rank);
          for (uint32_t local = 0; local < kLocals; ++local)
            if ((to >> local & 1) != 0)
              ++receivers_[size_t{number(host * kLocals + local, c)} * kLocals + rank % kLocals]
                    .rows;
        }
      for (uint32_t host = 0; host < hosts_; ++host)
        link(rank, c, host).built.assign(link(rank, c, host).rows, false);
    }
    for (uint32_t c = 0; c < channels_; ++c)
      for (uint32_t local = 0; local < kLocals; ++local) {
        Forwarder& of = forwarders_[size_t{number(rank, c)} * kLocals + local];
        of.heads.assign(hosts_, 0);
        of.host = 2 * c % hosts_;
      }
  }

  // ---- senders ------------------------------------------------------------------------------

  void send(uint32_t rank, uint32_t c, uint32_t warp, Time now) {
    Channel& channel = channels_of_[number(rank, c)];
    const uint32_t token = channel.next[warp];
    if (token >= channel.end) return;
    const uint32_t* const slots = &channel.slots[size_t{token - channel.begin} * hosts_];
    uint32_t copies = 0;
    for (uint32_t host = 0; host < hosts_; ++host) {
      if (slots[host] == kNone) continue;
      ++copies;
      if (slots[host] - link(rank, c, host).head >= config_.ring_rows) {
        channel.waits_for_credit.push_back(warp);
        return;
      }
    }
    channel.next[warp] += kSenders;
    // It looks at the tokens of all warps. Rows, scales, ids and weights one behind the other.
    const uint32_t rounds = (row_bytes_ + kUnderWay - 1) / kUnderWay;
    const Time loaded = now + kSenders * costs_.cached_load + (rounds + 2) * costs_.load;
    at(loaded, [this, rank, c, warp, token, copies](Time when) {
      Channel& of = channels_of_[number(rank, c)];
      const Time done = of.stores[1].take(when, Costs::at(costs_.store_gb_s, copies * slot_bytes_));
      at(done, [this, rank, c, warp, token](Time then) {
        release(rank, c, token, then);
        send(rank, c, warp, then);
      });
    });
  }

  /// Notes a token's slots as built.
  void release(uint32_t rank, uint32_t c, uint32_t token, Time now) {
    Channel& channel = channels_of_[number(rank, c)];
    for (uint32_t host = 0; host < hosts_; ++host) {
      const uint32_t slot = channel.slots[size_t{token - channel.begin} * hosts_ + host];
      if (slot == kNone) continue;
      Link& of = link(rank, c, host);
      of.built[slot] = true;
      while (of.released < of.rows && of.built[of.released]) ++of.released;
    }
    if (channel.coordinates) return;
    channel.coordinates = true;
    at(now + costs_.cached_load, [this, rank, c](Time then) { coordinate(rank, c, 0, then); });
  }

  /// Puts a chunk for the next host that has one.
  void coordinate(uint32_t rank, uint32_t c, uint32_t turn, Time now) {
    for (uint32_t i = 0; i < hosts_; ++i, ++turn) {
      const uint32_t host = (turn + c + host_of(rank)) % hosts_;
      Link& of = link(rank, c, host);
      const uint32_t ready = of.released - of.issued;
      if (ready == 0 || (ready < config_.put_rows && of.released != of.rows)) continue;
      const uint32_t rows = std::min(ready, config_.put_rows);
      of.issued += rows;
      const uint32_t peer = rail(host, rank);
      const auto arrived = [this, peer, c, from = host_of(rank), rows](Time then) {
        ring(peer, c, from).arrived += rows;
        wake_forwarders(peer, c, then);
      };
      if (host == host_of(rank)) {
        at(now + costs_.release_sys, arrived);
      } else {
        post(rank, host, c, double(rows) * slot_bytes_, nullptr, now + costs_.release_sys);
        post(rank, host, c, 8, arrived, now + costs_.release_sys);
      }
      at(now + 2 * costs_.release_sys,
         [this, rank, c, next = turn + 1](Time then) { coordinate(rank, c, next % hosts_, then); });
      return;
    }
    channels_of_[number(rank, c)].coordinates = false;
  }

  // ---- the network --------------------------------------------------------------------------

  /// `queue`: a channel's, or behind those its queue of credits.
  void post(uint32_t rank, uint32_t host, uint32_t queue, double bytes, What arrived, Time when) {
    // The card begins messages at its rate, while earlier ones are on the link.
    Time& begun = cards_[rank].begun;
    begun = std::max(begun, when) + costs_.message;
    at(begun, [this, rank, host, queue, bytes, arrived = std::move(arrived)](Time now) {
      const uint32_t of_rank = host * 2 * channels_ + queue;
      QueueOfCard& of = queues_[size_t{rank} * hosts_ * 2 * channels_ + of_rank];
      of.messages.push_back({bytes, arrived});
      CardOfRank& card = cards_[rank];
      if (!of.waits) {
        of.waits = true;
        card.turns.push_back(of_rank);
      }
      if (card.busy) return;
      card.busy = true;
      serve(rank, now);
    });
  }

  void serve(uint32_t rank, Time now) {
    CardOfRank& card = cards_[rank];
    if (card.turns.empty()) {
      card.busy = false;
      return;
    }
    const uint32_t of_rank = card.turns.front();
    card.turns.pop_front();
    QueueOfCard& queue = queues_[size_t{rank} * hosts_ * 2 * channels_ + of_rank];
    Message& message = queue.messages.front();
    if (queue.left <= 0) queue.left = message.bytes;
    const double burst = std::min(queue.left, kBurst);
    queue.left -= burst;
    const Time on_link = costs_.on_link(burst), end = now + on_link;
    CardOfRank& peer = cards_[rail(of_rank / (2 * channels_), rank)];
    peer.in_free = std::max(peer.in_free, now + costs_.latency) + on_link;
    queue.landed = std::max({queue.landed, end + costs_.latency, peer.in_free});
    card.out += burst;
    peer.in += burst;
    if (queue.left <= 0) {
      if (message.arrived) at(queue.landed, std::move(message.arrived));
      queue.messages.pop_front();
    }
    queue.waits = !queue.messages.empty();
    if (queue.waits) card.turns.push_back(of_rank);
    at(end, [this, rank](Time then) { serve(rank, then); });
  }

  // ---- forwarders ---------------------------------------------------------------------------

  void wake_forwarders(uint32_t rank, uint32_t c, Time now) {
    for (uint32_t local = 0; local < kLocals; ++local) {
      const uint32_t which = number(rank, c) * kLocals + local;
      if (!forwarders_[which].waits_for_rows) continue;
      forwarders_[which].waits_for_rows = false;
      at(now + costs_.load, [this, which](Time then) { forward(which, then); });
    }
  }

  /// Begins a batch: of the next host whose rows have come, once the rank's ring has room.
  void forward(uint32_t which, Time now) {
    Forwarder& of = forwarders_[which];
    const uint32_t local = which % kLocals, rank = which / kLocals / channels_,
                   c = which / kLocals % channels_;
    const uint32_t to = host_of(rank) * kLocals + local;
    const auto left = [&](uint32_t host) { return ring(rank, c, host).to.size() - of.heads[host]; };
    bool any = false;
    for (uint32_t host = 0; host < hosts_; ++host) any |= left(host) != 0;
    if (!any) {
      of.retired = true;
      return look(rank, c, now);
    }
    if (config_.host_ring_rows - (of.tail - of.seen_head) < config_.batch_rows) {
      of.seen_head = receivers_[size_t{number(to, c)} * kLocals + rank % kLocals].head_told;
      now += costs_.load;
      if (config_.host_ring_rows - (of.tail - of.seen_head) < config_.batch_rows) {
        of.waits_for_room = true;
        return;
      }
    }
    for (uint32_t i = 0; i < hosts_; ++i) {
      of.host = (of.host + 1) % hosts_;
      if (left(of.host) == 0) continue;
      now += costs_.load;
      if (ring(rank, c, of.host).arrived == of.heads[of.host]) continue;
      of.tail_seen = ring(rank, c, of.host).arrived;
      of.batch = 0;
      return at(now, [this, which](Time then) { forward_row(which, then); });
    }
    of.waits_for_rows = true;
  }

  /// Copies the batch's next row for the rank.
  void forward_row(uint32_t which, Time now) {
    Forwarder& of = forwarders_[which];
    const uint32_t local = which % kLocals, rank = which / kLocals / channels_,
                   c = which / kLocals % channels_;
    const uint32_t to = host_of(rank) * kLocals + local;
    const Ring& from = ring(rank, c, of.host);
    bool found = false;
    while (!found && of.heads[of.host] < of.tail_seen && of.batch < config_.batch_rows) {
      now += costs_.load;
      found = (from.to[of.heads[of.host]++] >> local & 1) != 0;
    }
    if (!found) {
      look(rank, c, now);
      const uint32_t tail = of.tail;
      now += costs_.release_sys;
      at(now + (to == rank ? 0 : costs_.far_store), [this, to, c, rank, tail](Time then) {
        const uint32_t receiver = number(to, c) * kLocals + rank % kLocals;
        receivers_[receiver].tail = tail;
        wake_receiver(receiver, then);
      });
      return at(now, [this, which](Time then) { forward(which, then); });
    }
    ++of.tail;
    ++of.batch;
    at(now, [this, which, rank, c, to](Time when) {
      const Time loaded = load(number(rank, c), 0, slot_bytes_, when);
      at(loaded, [this, which, rank, c, to](Time then) {
        Time done = channels_of_[number(rank, c)].stores[0].take(
            then, Costs::at(costs_.store_gb_s, slot_bytes_));
        if (to != rank) {
          const Time takes = Costs::at(config_.nvlink_gb_s, slot_bytes_);
          done = std::max(
              {done, nvlink_out_[rank].take(then, takes), nvlink_in_[to].take(then, takes)});
        }
        done += to == rank ? costs_.bulk_stored : costs_.far_bulk_stored;
        at(done, [this, which](Time end) { forward_row(which, end); });
      });
    });
  }

  Time load(uint32_t channel, uint32_t sm, uint32_t bytes, Time now) {
    const Time takes = Costs::at(costs_.load_gb_s, bytes);
    return std::max(channels_of_[channel].loads[sm].take(now, takes),
                    now + costs_.bulk_load + takes);
  }

  /// Returns credits for rows that all forwarders have passed.
  void look(uint32_t rank, uint32_t c, Time now) {
    Channel& channel = channels_of_[number(rank, c)];
    if (channel.looks) return;
    channel.looks = true;
    at(now + kLook, [this, rank, c](Time then) {
      channels_of_[number(rank, c)].looks = false;
      for (uint32_t host = 0; host < hosts_; ++host) {
        uint32_t least = kNone;
        for (uint32_t local = 0; local < kLocals; ++local) {
          const Forwarder& of = forwarders_[size_t{number(rank, c)} * kLocals + local];
          if (!of.retired) least = std::min(least, of.heads[host]);
        }
        Ring& from = ring(rank, c, host);
        if (least == kNone || least < from.credited + config_.put_rows) continue;
        from.credited = least;
        const uint32_t source = rail(host, rank);
        const auto arrived = [this, source, c, to = host_of(rank), least](Time when) {
          link(source, c, to).head = least;
          Channel& of = channels_of_[number(source, c)];
          for (const uint32_t warp : std::exchange(of.waits_for_credit, {}))
            at(when + costs_.load,
               [this, source, c, warp](Time again) { send(source, c, warp, again); });
        };
        if (host == host_of(rank))
          at(then + costs_.release_sys, arrived);
        else
          post(rank, host, channels_ + c, 8, arrived, then + costs_.release_sys);
      }
    });
  }

  // ---- receivers ----------------------------------------------------------------------------

  void wake_receiver(uint32_t which, Time now) {
    Receiver& of = receivers_[which];
    if (!of.waits || of.head == of.tail) return;
    of.waits = false;
    at(now + costs_.load, [this, which](Time then) {
      receivers_[which].upto = receivers_[which].tail;
      receive_row(which, then);
    });
  }

  void receive_row(uint32_t which, Time now) {
    Receiver& of = receivers_[which];
    const uint32_t local = which % kLocals, rank = which / kLocals / channels_,
                   c = which / kLocals % channels_;
    if (of.head == of.upto) {
      const uint32_t from = host_of(rank) * kLocals + local, head = of.head;
      at(now + (from == rank ? 0 : costs_.far_store),
         [this, which, from, rank, c, head](Time then) {
           receivers_[which].head_told = head;
           const uint32_t forwarder = number(from, c) * kLocals + rank % kLocals;
           if (!forwarders_[forwarder].waits_for_room) return;
           forwarders_[forwarder].waits_for_room = false;
           forward(forwarder, then);
         });
      ended_[rank] = std::max(ended_[rank], now);
      of.waits = true;
      return wake_receiver(which, now);
    }
    ++of.head;
    at(now + costs_.load, [this, which, rank, c](Time when) {
      const Time loaded = load(number(rank, c), 1, row_bytes_, when);
      at(loaded, [this, which, rank, c](Time then) {
        const Time done = channels_of_[number(rank, c)].stores[1].take(
            then, Costs::at(costs_.store_gb_s, row_bytes_));
        at(done + costs_.bulk_stored, [this, which](Time end) { receive_row(which, end); });
      });
    });
  }

  static constexpr uint32_t kNone = UINT32_MAX;
  const DeepEpV1 config_;
  const RoutedShape shape_;
  const Costs& costs_;
  const uint32_t hosts_, ranks_, channels_, row_bytes_, slot_bytes_;
  std::priority_queue<Event> events_;
  uint64_t count_ = 0;
  std::vector<CardOfRank> cards_;
  std::vector<QueueOfCard> queues_;  ///< [ranks, hosts, 2 * channels]
  std::vector<Ring> rings_;          ///< [ranks, channels, hosts]
  std::vector<Link> links_;          ///< [ranks, channels, hosts]
  std::vector<Channel> channels_of_;
  std::vector<Forwarder> forwarders_;  ///< [ranks, channels, ranks of the host that they serve]
  std::vector<Receiver> receivers_;    ///< [ranks, channels, ranks of the host that they hear]
  std::vector<Pipe> nvlink_out_, nvlink_in_;
  std::vector<Time> ended_;
  double counted_ = 0, crossing_ = 0;  ///< rows
};

}  // namespace

DeepEpV1 DeepEpV1::published(uint32_t ranks) {
  DeepEpV1 config;
  config.put_rows = ranks <= 16 ? 20 : ranks <= 64 ? 8 : 12;
  config.batch_rows = ranks <= 16 ? 36 : ranks <= 64 ? 32 : 20;
  config.host_ring_rows = ranks <= 64 ? 288 : 480;
  // A ring is a multiple of a put.
  config.ring_rows = (config.ring_rows + config.put_rows - 1) / config.put_rows * config.put_rows;
  return config;
}

DeepEpV1Time model_deep_ep_v1(const DeepEpV1& config, const RoutedShape& shape, uint32_t row_bytes,
                              const Costs& costs) {
  return Simulation(config, shape, row_bytes, costs).run();
}

}  // namespace tokenyard::bench
