// Suite `device_messages`: messages between pairs of ranks under adversarial delivery, schedules
// and memory: rounds of all_to_all with a size per pair, which hosts or only devices know, of
// batches, and of messages one by one. Some worlds have an empty slot. Some runs end with a round
// in which a pair differs, some with a rank that stops.
#include <fmt/format.h>

#include <optional>

#include "collectives/device/drawn_run.hpp"
#include "collectives/device/message_case.hpp"
#include "expert_parallel/drawn_epoch.hpp"
#include "simulation/suite.hpp"

namespace tokenyard::test {
namespace {

using simulation::Random;
using simulation::SeedRun;

struct Drawn {
  uint32_t ranks = 2;
  std::vector<uint32_t> absent = {}, present = {};
  device_collectives::Options options;
  std::vector<MessageRound> rounds;
  std::vector<uint32_t> sms;  ///< [ranks]
  bool differs = false;       ///< whether a pair differs in the last round
  uint32_t source = 0, destination = 1;
  uint32_t trains = 0;  ///< rounds after which the host waits
  bool closes = true;
  std::optional<uint32_t> stops;
  uint32_t epoch_before = 0;
};

Drawn draw(SeedRun& run) {
  Random& random = run.random;
  Drawn drawn;
  drawn.ranks = run.option("ranks", random.between(2, 4));
  if (drawn.ranks > 2 && random.chance(256)) {
    drawn.absent.push_back(run.option("absent", random.below(drawn.ranks)));
    run.reach("empty slots");
  }
  for (uint32_t rank = 0; rank < drawn.ranks; ++rank)
    if (drawn.absent.empty() || rank != drawn.absent[0]) drawn.present.push_back(rank);
  const auto present = static_cast<uint32_t>(drawn.present.size());
  drawn.options.slot_bytes = 16;
  drawn.options.packet_bytes = 16;
  drawn.options.key = draw_key(random);
  drawn.options.chunk_bytes = run.option("chunk_bytes", 16 * random.between(1, 2));
  drawn.options.ring_bytes =
      run.option("ring_bytes", drawn.options.chunk_bytes * random.between(1, 3));
  const uint32_t rounds = run.option("rounds", random.between(2, 5));
  for (uint32_t i = 0; i < rounds; ++i) {
    const bool collective = random.chance(512);
    // One by one, a rank sends before it receives: only what fits into a channel.
    const bool one_by_one = !collective && random.chance(512);
    MessageRound round = MessageRound::drawn(
        random, drawn.ranks, one_by_one ? drawn.options.ring_bytes : 5 * drawn.options.chunk_bytes,
        collective);
    round.one_by_one = one_by_one;
    round.on_device = collective && random.chance(384);
    round.absent = drawn.absent;
    drawn.rounds.push_back(round);
  }
  for (uint32_t rank = 0; rank < drawn.ranks; ++rank) drawn.sms.push_back(random.between(1, 2));
  drawn.trains = run.option("trains", random.between(1, 3));
  drawn.closes = run.option("closes", random.chance(768));
  if (random.chance(192)) {
    drawn.differs = run.option("differs", true);
    drawn.rounds.back().collective = true;
    drawn.rounds.back().on_device = false;
    const uint32_t source = random.below(present);
    drawn.source = drawn.present[source];
    drawn.destination = drawn.present[(source + random.between(1, present - 1)) % present];
  } else if (random.chance(192)) {
    drawn.stops = run.option("stops", drawn.present[random.below(present)]);
  }
  drawn.epoch_before = draw_epoch_before(run);
  return drawn;
}

void require_refusal(World& world, DeviceCollectives& collectives, const Drawn& drawn,
                     const Call& call) {
  MessageRound round = drawn.rounds.back();
  if (world.rank() == drawn.destination)
    round.bytes[drawn.source * drawn.ranks + drawn.destination] += 1;
  require_refused_pair(collectives, StartedRound(world, round), call, drawn.destination,
                       "received");
}

void program(World& world, const Drawn& drawn) {
  DeviceCollectives collectives(world, drawn.options);
  Call call;
  call.sms = drawn.sms[world.rank()];
  std::vector<std::unique_ptr<StartedRound>> started;
  for (size_t i = 0; i < drawn.rounds.size(); ++i) {
    const bool last = i + 1 == drawn.rounds.size();
    if (last && drawn.differs) return require_refusal(world, collectives, drawn, call);
    started.push_back(std::make_unique<StartedRound>(world, drawn.rounds[i]));
    started.back()->start(collectives, call);
    if (started.size() < drawn.trains && !last) continue;
    require_results(world, collectives, started);
  }
  if (drawn.closes) collectives.close();
}

void run_suite(SeedRun& run) {
  run_drawn(run, draw(run), program);
}

constexpr const char* kOwnHost =
    "the report of a failed wait, which only this rank's own host reads";

const bool registered = simulation::add_suite(
    {.name = "device_messages",
     .what = "messages between pairs of ranks bring what was sent, or end with typed errors",
     .run = run_suite,
     .explained = {{simulation::Fault::release_made_relaxed, "memory.hpp:51", kOwnHost},
                   {simulation::Fault::sys_made_gpu, "memory.hpp:51", kOwnHost}},
     .reaches = {{"epochs wrap", 100}, {"epochs pass a half", 60}, {"empty slots", 60}},
     .seeds = 500});

}  // namespace
}  // namespace tokenyard::test
