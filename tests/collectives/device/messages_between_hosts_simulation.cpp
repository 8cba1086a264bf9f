// Suite `device_messages_hosts`: messages and parts of any sizes between ranks of several hosts,
// over the simulated network, some of whose slots are empty; beside them collectives, which the
// same launches may meet. Rings hold two chunks. Some runs end with a round in which a pair
// differs, some with a rank that stops.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "collectives/device/drawn_run.hpp"
#include "collectives/device/message_case.hpp"
#include "simulation/suite.hpp"

namespace tokenyard::test {
namespace {

using simulation::Random;
using simulation::SeedRun;

/// A round of messages, or a collective call.
struct Step {
  std::optional<MessageRound> round;
  CallCase call;
};

struct Drawn {
  std::vector<uint32_t> host_of;  ///< [ranks]
  std::vector<uint32_t> absent, present;
  device_collectives::Options options;
  std::vector<Step> steps;
  std::vector<uint32_t> sms;  ///< [ranks]
  bool differs = false;       ///< whether a pair differs in the last round
  uint32_t source = 0, destination = 0;
  uint32_t trains = 0;  ///< steps after which the host waits
  std::optional<uint32_t> stops;

  uint32_t ranks() const { return static_cast<uint32_t>(host_of.size()); }
};

CallCase draw_call(Random& random, const Drawn& drawn) {
  CallCase of;
  of.operation = static_cast<Operation>(random.between(1, 9));
  of.type = random.chance(512) ? DataType::float32 : DataType::bfloat16;
  of.op = random.chance(512) ? ReduceOp::sum : ReduceOp::average;
  of.elements = random.between(0, random.chance(256) ? 100 : 20);
  of.root = drawn.present[random.below(static_cast<uint32_t>(drawn.present.size()))];
  of.in_place = random.chance(512);
  of.seed = random.next() >> 32;
  of.host_of = drawn.host_of;
  of.absent = drawn.absent;
  return of;
}

MessageRound draw_round(Random& random, const Drawn& drawn, bool collective) {
  // One by one, a rank sends before it receives: only what fits into a ring.
  const bool one_by_one = !collective && random.chance(512);
  const uint32_t bytes_max = one_by_one ? drawn.options.ring_bytes : 4 * drawn.options.chunk_bytes;
  MessageRound round = MessageRound::drawn(random, drawn.ranks(), bytes_max, collective);
  round.one_by_one = one_by_one;
  round.on_device = collective && random.chance(512);
  round.absent = drawn.absent;
  return round;
}

Drawn draw(SeedRun& run) {
  Random& random = run.random;
  Drawn drawn;
  const uint32_t hosts = random.chance(256) ? 3 : 2;
  for (uint32_t host = 0; host < hosts; ++host)
    for (uint32_t left = random.between(1, 2); left > 0; --left) drawn.host_of.push_back(host);
  run.option("host_of", fmt::format("{}", drawn.host_of));
  if (drawn.ranks() > 2 && random.chance(320)) {
    drawn.absent.push_back(random.below(drawn.ranks()));
    run.reach("empty slots");
  }
  for (uint32_t rank = 0; rank < drawn.ranks(); ++rank)
    if (std::ranges::find(drawn.absent, rank) == drawn.absent.end()) drawn.present.push_back(rank);
  run.option("absent", fmt::format("{}", drawn.absent));
  drawn.options.slot_bytes = 16;
  drawn.options.packet_bytes = 16;
  drawn.options.key = draw_key(random);
  drawn.options.chunk_bytes = run.option("chunk_bytes", 32 * random.between(1, 2));
  drawn.options.ring_bytes = 2 * drawn.options.chunk_bytes;
  for (uint32_t steps = random.between(1, 3); steps > 0; --steps) {
    Step step;
    if (random.chance(256)) {
      step.call = draw_call(random, drawn);
      run.option("call", step.call.text());
    } else {
      step.round = draw_round(random, drawn, random.chance(512));
      run.option("round", fmt::format("{}{}{}", step.round->collective ? "all_to_all" : "messages",
                                      step.round->on_device ? ", splits on the device" : "",
                                      step.round->one_by_one ? ", one by one" : ""));
    }
    drawn.steps.push_back(std::move(step));
  }
  for (uint32_t rank = 0; rank < drawn.ranks(); ++rank) drawn.sms.push_back(random.between(1, 2));
  drawn.trains = run.option("trains", random.between(1, 3));
  const auto present = static_cast<uint32_t>(drawn.present.size());
  if (random.chance(192)) {
    drawn.differs = run.option("differs", true);
    drawn.steps.back().round = draw_round(random, drawn, true);
    const uint32_t source = random.below(present);
    drawn.source = drawn.present[source];
    drawn.destination = drawn.present[(source + random.between(1, present - 1)) % present];
  } else if (random.chance(192)) {
    drawn.stops = run.option("stops", drawn.present[random.below(present)]);
  }
  return drawn;
}

/// Makes the round in which a pair differs: all must raise the same error.
void require_refusal(World& world, DeviceCollectives& collectives, const Drawn& drawn,
                     const Call& call) {
  MessageRound round = *drawn.steps.back().round;
  // A device finds only that a result is too small.
  uint32_t& bytes = round.bytes[drawn.source * drawn.ranks() + drawn.destination];
  if (round.on_device) {
    for (uint32_t rank = 0; rank < drawn.ranks(); ++rank)
      round.bytes[rank * drawn.ranks() + drawn.destination] = 3;
    if (world.rank() == drawn.destination) bytes = 2;
  } else if (world.rank() == drawn.destination) {
    bytes += 1;
  }
  require_refused_pair(collectives, StartedRound(world, round), call, drawn.destination,
                       round.on_device ? "result" : "received");
}

void program(World& world, const Drawn& drawn) {
  DeviceCollectives collectives(world, drawn.options);
  Call call;
  call.sms = drawn.sms[world.rank()];
  std::vector<std::unique_ptr<StartedRound>> rounds;
  std::vector<std::unique_ptr<StartedCall>> calls;
  for (size_t i = 0; i < drawn.steps.size(); ++i) {
    const Step& step = drawn.steps[i];
    const bool last = i + 1 == drawn.steps.size();
    if (last && drawn.differs) return require_refusal(world, collectives, drawn, call);
    if (step.round) {
      rounds.push_back(std::make_unique<StartedRound>(world, *step.round));
      rounds.back()->start(collectives, call);
    } else {
      CallCase of = step.call;
      of.call = call;
      calls.push_back(std::make_unique<StartedCall>(world, of));
      calls.back()->start(collectives);
    }
    if (rounds.size() + calls.size() < drawn.trains && !last) continue;
    require_results(world, collectives, rounds);
    require_results(world, collectives, calls);
  }
  collectives.close();
}

void run_suite(SeedRun& run) {
  const Drawn drawn = draw(run);
  run_drawn_between_hosts(run, drawn, drawn.differs, program);
}

constexpr const char* kOwnHost =
    "the report of a failed wait, which only this rank's own host reads";

const bool registered = simulation::add_suite(
    {.name = "device_messages_hosts",
     .what = "messages and parts of any sizes between hosts, exact whatever the network does",
     .run = run_suite,
     .explained = {{simulation::Fault::release_made_relaxed, "memory.hpp:51", kOwnHost},
                   {simulation::Fault::sys_made_gpu, "memory.hpp:51", kOwnHost}},
     .reaches = {{"epochs wrap", 150}, {"epochs pass a half", 80}, {"empty slots", 40}},
     .seeds = 300});

}  // namespace
}  // namespace tokenyard::test
