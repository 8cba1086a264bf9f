/// Messages between all pairs of ranks, with their contents and the check of what came.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "collectives/device/call_case.hpp"

namespace tokenyard::test {

/// Parts of an all_to_all, or messages, from every rank to every rank.
struct MessageRound {
  uint32_t ranks = 2;
  bool collective = true;
  bool one_by_one = false;  ///< messages that fit into channels are sent in calls of their own
  bool on_device = false;   ///< only the device knows the sizes of parts
  uint64_t seed = 0;
  std::vector<uint32_t> bytes;        ///< [ranks][ranks] from source to destination
  std::vector<uint32_t> tags;         ///< the same for messages
  std::vector<uint32_t> absent = {};  ///< ranks whose slots are empty

  static MessageRound drawn(simulation::Random& random, uint32_t ranks, uint32_t bytes_max,
                            bool collective) {
    MessageRound round{.ranks = ranks,
                       .collective = collective,
                       .one_by_one = false,
                       .seed = random.next() >> 32,
                       .bytes = {},
                       .tags = {}};
    for (uint32_t pair = 0; pair < ranks * ranks; ++pair) {
      round.bytes.push_back(random.chance(256) ? 0 : random.between(0, bytes_max));
      round.tags.push_back(random.below(3));
    }
    return round;
  }

  uint32_t bytes_between(uint32_t source, uint32_t destination) const {
    return bytes[source * ranks + destination];
  }
  bool is_present(uint32_t rank) const { return std::ranges::find(absent, rank) == absent.end(); }
  /// Returns whether the source's input, or the destination's result, has a part for the pair.
  bool sends(uint32_t source, uint32_t destination) const {
    if (collective) return is_present(source) || !on_device;
    return is_present(source) && is_present(destination) && source != destination &&
           tags[source * ranks + destination] != 2;
  }
  uint8_t content(uint32_t source, uint32_t destination, uint32_t at) const {
    if (!is_present(source)) return 0;
    return static_cast<uint8_t>((seed + at) * 31 + source * 7 + destination * 3 + 1);
  }
};

/// A round on one rank, between its start and the check of what came.
class StartedRound {
 public:
  StartedRound(World& world, MessageRound round) : world_(world), of_(std::move(round)) {
    const uint32_t rank = world.rank();
    uint32_t sent = 0, received = 0;
    for (uint32_t peer = 0; peer < of_.ranks; ++peer) {
      if (of_.sends(rank, peer)) sent += of_.bytes_between(rank, peer);
      if (of_.sends(peer, rank)) received += of_.bytes_between(peer, rank);
    }
    const CallCase bytes{.type = DataType::uint8, .offset = static_cast<uint32_t>(of_.seed % 5)};
    given_ = std::make_unique<GuardedTensor>(world, bytes, sent);
    taken_ = std::make_unique<GuardedTensor>(world, bytes, received);
    for (uint32_t peer = 0; peer < of_.ranks; ++peer)
      if (of_.sends(rank, peer))
        for (uint32_t at = 0; at < of_.bytes_between(rank, peer); ++at)
          sent_.push_back(of_.content(rank, peer, at));
    if (of_.on_device) {
      std::vector<int64_t> splits;
      for (uint32_t peer = 0; peer < of_.ranks; ++peer)
        splits.push_back(of_.bytes_between(rank, peer));
      splits_ = std::make_unique<DeviceArray<int64_t>>(accelerator_of(world), splits);
      came_ = std::make_unique<DeviceArray<int64_t>>(accelerator_of(world),
                                                     std::vector<int64_t>(of_.ranks, -1));
    }
    if (sent_.empty()) return;
    accelerator_of(world).copy(given_->data(), sent_.data(), sent_.size(), Stream{});
    await_all(accelerator_of(world));
  }

  void start(DeviceCollectives& collectives, const Call& call) {
    const uint32_t rank = world_.rank();
    if (of_.on_device)
      return collectives.all_to_all(given_->view(), taken_->view(),
                                    {.sent = splits_->data(), .received = came_->data()}, call);
    if (of_.collective) {
      device_collectives::Splits splits;
      for (uint32_t peer = 0; peer < of_.ranks; ++peer) {
        splits.sent.push_back(of_.bytes_between(rank, peer));
        splits.received.push_back(of_.bytes_between(peer, rank));
      }
      return collectives.all_to_all(given_->view(), taken_->view(), splits, call);
    }
    std::vector<device_collectives::Send> sends;
    std::vector<device_collectives::Receive> receives;
    uint32_t sent = 0, received = 0;
    for (uint32_t peer = 0; peer < of_.ranks; ++peer) {
      if (of_.sends(rank, peer)) {
        const uint32_t bytes = of_.bytes_between(rank, peer);
        sends.push_back({given_->view(sent, bytes), peer, of_.tags[rank * of_.ranks + peer]});
        sent += bytes;
      }
      if (of_.sends(peer, rank)) {
        const uint32_t bytes = of_.bytes_between(peer, rank);
        receives.push_back(
            {taken_->view(received, bytes), peer, of_.tags[peer * of_.ranks + rank]});
        received += bytes;
      }
    }
    if (!of_.one_by_one) return collectives.exchange(sends, receives, call);
    for (const auto& send : sends) collectives.exchange({send}, {}, call);
    for (const auto& receive : receives) collectives.exchange({}, {receive}, call);
  }

  /// Returns what is wrong after the round has ended; empty if nothing is.
  std::string difference() const {
    bool intact = true;
    std::string wrong;
    const Bytes seen = taken_->read(intact);
    size_t at = 0;
    for (uint32_t peer = 0; peer < of_.ranks; ++peer) {
      if (!of_.sends(peer, world_.rank())) continue;
      for (uint32_t i = 0; i < of_.bytes_between(peer, world_.rank()); ++i, ++at)
        if (seen[at] != of_.content(peer, world_.rank(), i) && wrong.empty())
          wrong = fmt::format("byte {} of {} from rank {} is {:#x}; ", i,
                              of_.bytes_between(peer, world_.rank()), peer, seen[at]);
    }
    if (of_.on_device) {
      const std::vector<int64_t> came = came_->read();
      for (uint32_t peer = 0; peer < of_.ranks; ++peer)
        if (came[peer] != (of_.is_present(peer) ? of_.bytes_between(peer, world_.rank()) : 0))
          wrong += fmt::format("{} elements are said to come from rank {}; ", came[peer], peer);
    }
    if (given_->read(intact) != sent_) wrong += "the input was written; ";
    return wrong + (intact ? "" : "memory beside a tensor was written; ");
  }

 private:
  World& world_;
  const MessageRound of_;
  std::unique_ptr<GuardedTensor> given_, taken_;
  std::unique_ptr<DeviceArray<int64_t>> splits_, came_;
  Bytes sent_;
};

}  // namespace tokenyard::test
