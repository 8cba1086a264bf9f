#include "simulation/policy.hpp"

#include <fmt/format.h>

namespace tokenyard::simulation {
namespace {

const char* name(Delivery delivery) {
  switch (delivery) {
    case Delivery::uniform:
      return "uniform";
    case Delivery::newest_first:
      return "newest first when idle";
    case Delivery::random_idle:
      return "random when idle";
    case Delivery::clogged:
      return "one clogged path";
  }
  return "?";
}

}  // namespace

Policy Policy::draw(Random& random, uint32_t ranks) {
  Policy policy;
  policy.delivery = static_cast<Delivery>(random.below(4));
  policy.land_per_1024 = 1u << random.below(10);
  policy.stale_per_1024 = random.chance(256) ? 0 : random.between(32, 900);
  policy.oldest_first = random.chance(512);
  policy.stale_steps = 1u << random.between(6, 17);
  policy.insert_per_1024 = random.chance(512) ? 0 : random.between(32, 700);
  policy.tear_per_1024 = random.chance(700) ? 0 : random.between(32, 1024);
  policy.clogged_from = random.below(ranks);
  policy.clogged_to = random.below(ranks);
  return policy;
}

std::string Policy::text() const {
  return fmt::format(
      "delivery {}{}, land {}/1024, stale {}/1024 {} for {} steps, insert {}/1024, tear {}/1024",
      name(delivery),
      delivery == Delivery::clogged ? fmt::format(" {}->{}", clogged_from, clogged_to) : "",
      land_per_1024, stale_per_1024, oldest_first ? "oldest first" : "any", stale_steps,
      insert_per_1024, tear_per_1024);
}

}  // namespace tokenyard::simulation
