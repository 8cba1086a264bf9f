// Suite `device_hosts`: collectives on device tensors between hosts of one to three ranks over the
// simulated network, which lands bytes as late, torn, and in as wrong an order, as a network may.
// Rings hold few bytes. Every result is compared bit for bit. Some runs end with a call in which
// ranks differ, some with a rank that stops.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <optional>

#include "collectives/device/call_case.hpp"
#include "collectives/device/drawn_run.hpp"
#include "simulation/suite.hpp"

namespace tokenyard::test {
namespace {

using simulation::Random;
using simulation::SeedRun;

struct Drawn {
  std::vector<uint32_t> host_of;  ///< [ranks]
  device_collectives::Options options;
  std::vector<CallCase> calls;
  std::vector<uint32_t> sms;  ///< [ranks]
  uint32_t differs = 0;       ///< rank that makes another call in the end; the ranks: none
  CallCase other;             ///< that call
  uint32_t trains = 0;        ///< calls after which the host waits
  std::optional<uint32_t> stops;

  uint32_t ranks() const { return static_cast<uint32_t>(host_of.size()); }
};

CallCase draw_call(Random& random, const std::vector<uint32_t>& host_of) {
  constexpr DataType kTypes[] = {DataType::uint8, DataType::int32, DataType::bfloat16,
                                 DataType::float32};
  CallCase of;
  of.operation = static_cast<Operation>(random.between(1, 9));
  of.type = kTypes[random.below(std::size(kTypes))];
  of.op = random.chance(768) ? ReduceOp::sum : ReduceOp::max;
  // A chunk has 64 bytes, and rings hold four of each channel.
  of.elements = random.chance(128) ? 0 : random.between(1, random.chance(256) ? 200 : 24);
  of.root = random.below(static_cast<uint32_t>(host_of.size()));
  of.in_place = random.chance(512);
  of.offset = random.chance(512) ? 0 : random.below(4);
  of.seed = random.next() >> 32;
  of.host_of = host_of;
  return of;
}

Drawn draw(SeedRun& run) {
  Random& random = run.random;
  Drawn drawn;
  const uint32_t hosts = random.chance(192) ? 3 : 2;
  for (uint32_t host = 0; host < hosts; ++host)
    for (uint32_t left = random.between(1, random.chance(128) ? 3 : 2); left > 0; --left)
      drawn.host_of.push_back(host);
  run.option("host_of", fmt::format("{}", drawn.host_of));
  drawn.options.slot_bytes = run.option("slot_bytes", 16 * random.between(1, 6));
  drawn.options.chunk_bytes = 64;
  drawn.options.ring_bytes = 128;  // Of messages, which this suite has none of.
  for (uint32_t calls = random.between(1, 3); calls > 0; --calls) {
    drawn.calls.push_back(draw_call(random, drawn.host_of));
    run.option("call", drawn.calls.back().text());
  }
  for (uint32_t rank = 0; rank < drawn.ranks(); ++rank) drawn.sms.push_back(random.between(1, 2));
  drawn.trains = run.option("trains", random.between(1, 3));
  drawn.differs = drawn.ranks();
  CallCase& last = drawn.calls.back();
  if (random.chance(256)) {
    drawn.differs = run.option("differs", random.between(1, drawn.ranks() - 1));
    drawn.other = draw_call(random, drawn.host_of);
    if (last.operation == Operation::barrier) last.operation = Operation::all_gather;
    if (drawn.other.operation == Operation::barrier) drawn.other.operation = Operation::all_reduce;
    if (drawn.other.operation == last.operation) drawn.other.elements = last.elements + 1;
    run.option("other", drawn.other.text());
  } else if (random.chance(192)) {
    drawn.stops = run.option("stops", random.below(drawn.ranks()));
  }
  return drawn;
}

/// Makes the call that one rank makes otherwise: all must raise the same error.
void require_refusal(World& world, DeviceCollectives& collectives, const Drawn& drawn,
                     const CallCase& usual) {
  const bool is_usual = world.rank() != drawn.differs;
  StartedCall call(world, is_usual ? usual : drawn.other);
  try {
    call.start(collectives);
    collectives.wait();
  } catch (const InvalidArgument& error) {
    require(error.rank == drawn.differs,
            fmt::format("rank {} is accused: {}", error.rank.value_or(99), error.what()));
    // A reduction needs data of all ranks, and those of another call are not accepted.
    return require(!is_usual || !usual.reduces() || call.untouched(),
                   "a result was written in a call in which ranks differ");
  }
  throw simulation::SuiteFailure("a call in which ranks differ ended well");
}

void program(World& world, const Drawn& drawn) {
  DeviceCollectives collectives(world, drawn.options);
  std::vector<std::unique_ptr<StartedCall>> started;
  for (size_t i = 0; i < drawn.calls.size(); ++i) {
    CallCase of = drawn.calls[i];
    of.call.sms = drawn.sms[world.rank()];
    const bool last = i + 1 == drawn.calls.size();
    if (last && drawn.differs < drawn.ranks())
      return require_refusal(world, collectives, drawn, of);
    started.push_back(std::make_unique<StartedCall>(world, of));
    started.back()->start(collectives);
    if (started.size() < drawn.trains && !last) continue;
    require_results(world, collectives, started);
  }
  collectives.close();
}

void run_suite(SeedRun& run) {
  const Drawn drawn = draw(run);
  run_drawn_between_hosts(run, drawn, drawn.differs < drawn.ranks(), program);
}

constexpr const char* kOwnHost =
    "the report of a failed wait, which only this rank's own host reads";

const bool registered = simulation::add_suite(
    {.name = "device_hosts",
     .what = "collectives on device tensors between hosts, exact whatever the network does",
     .run = run_suite,
     .explained = {{simulation::Fault::release_made_relaxed, "memory.hpp:51", kOwnHost},
                   {simulation::Fault::sys_made_gpu, "memory.hpp:51", kOwnHost}},
     .reaches = {{"epochs wrap", 150}, {"epochs pass a half", 80}},
     .seeds = 300});

}  // namespace
}  // namespace tokenyard::test
