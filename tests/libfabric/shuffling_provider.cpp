/// Stands between the plug-in and libfabric, and delivers as a network without any order may: what
/// is posted goes out in another order, and what has happened is told in another one, late.
///
/// Its provider's name is "ORDER:SEED:" and the name of the provider beneath. ORDER is "counted",
/// "delivered" or, without any of this, "offsets".
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <random>
#include <utility>

#include "libfabric/libfabric_maker.hpp"

namespace tokenyard::libfabric {
namespace {

class ShufflingProvider final : public Provider {
 public:
  ShufflingProvider(std::unique_ptr<Provider> beneath, bool tells_data, uint32_t seed)
      : beneath_(std::move(beneath)), facts_(beneath_->facts()), random_(seed) {
    facts_.ordered = false;
    facts_.tells_data = tells_data;
    facts_.message_max = std::min<size_t>(facts_.message_max, 5000);
    facts_.pieces_max = 1 + seed % 2;
  }

  const Facts& facts() const override { return facts_; }
  std::vector<std::byte> address() const override { return beneath_->address(); }
  uint64_t insert(std::span<const std::byte> address) override { return beneath_->insert(address); }
  std::unique_ptr<Region> register_memory(std::span<std::byte> memory, bool from_peers) override {
    return beneath_->register_memory(memory, from_peers);
  }
  std::unique_ptr<Region> register_gpu_memory(std::span<std::byte> memory) override {
    return beneath_->register_gpu_memory(memory);
  }
  Posted send(uint64_t peer, std::span<const std::byte> message, const Region& region,
              Operation& operation) override {
    return hold([=, this, &region, &operation] {
      return beneath_->send(peer, message, region, operation);
    });
  }
  Posted receive(std::span<std::byte> into, const Region& region, Operation& operation) override {
    return beneath_->receive(into, region, operation);
  }
  Posted write(uint64_t peer, const Write& write, Operation& operation) override {
    return hold([=, this, &operation] { return beneath_->write(peer, write, operation); });
  }

  size_t poll(std::span<Completion> completions) override {
    for (size_t tries = held_.size(); tries > 0 && random_() % 4 != 0; --tries) {
      const size_t chosen = random_() % held_.size();
      const Posted posted = held_[chosen]();
      if (posted == Posted::full) break;
      if (posted == Posted::failed) std::abort();  // Tests of failures go without this.
      held_.erase(held_.begin() + static_cast<ptrdiff_t>(chosen));
    }
    // A failure is told at once, since its reason is kept for one only.
    Completion one;
    while (happened_.size() < 64 && beneath_->poll({&one, 1}) != 0) {
      if (one.error != 0) {
        completions[0] = one;
        return 1;
      }
      happened_.push_back(one);
    }
    size_t count = 0;
    while (count < completions.size() && !happened_.empty() && random_() % 3 != 0) {
      const size_t chosen = random_() % happened_.size();
      completions[count++] = happened_[chosen];
      happened_.erase(happened_.begin() + static_cast<ptrdiff_t>(chosen));
    }
    return count;
  }
  std::string why() const override { return beneath_->why(); }
  void sleep(std::chrono::nanoseconds at_most, int waker) override {
    if (held_.empty() && happened_.empty()) beneath_->sleep(at_most, waker);
  }
  void stop() override {
    held_.clear();
    happened_.clear();
    beneath_->stop();
  }

 private:
  Posted hold(std::function<Posted()> post) {
    if (held_.size() == 128) return Posted::full;
    held_.push_back(std::move(post));
    return Posted::yes;
  }

  const std::unique_ptr<Provider> beneath_;
  Facts facts_;
  std::mt19937 random_;
  std::deque<std::function<Posted()>> held_;
  std::deque<Completion> happened_;
};

}  // namespace

std::unique_ptr<Provider> provider_for(const PluginOptions& options, const TransportPlace& place) {
  const std::string& name = options.provider;
  const size_t first = name.find(':'), second = name.find(':', first + 1);
  const std::string order = name.substr(0, first);
  auto beneath = open_provider({.provider = name.substr(second + 1),
                                .interface = options.interface,
                                .address = place.address,
                                .offsets = order == "offsets",
                                .gpu = place.gpu});
  if (order == "offsets") return beneath;
  const auto seed = static_cast<uint32_t>(std::stoul(name.substr(first + 1, second - first - 1)));
  return std::make_unique<ShufflingProvider>(std::move(beneath), order == "counted",
                                             seed + place.rank);
}

}  // namespace tokenyard::libfabric
