// Suite `device_collectives`: collectives on device tensors under adversarial delivery, schedules
// and memory; every result is compared bit for bit. Some runs end with a call in which ranks
// differ, some with a rank that stops.
#include <fmt/format.h>

#include <iterator>
#include <optional>

#include "collectives/device/call_case.hpp"
#include "collectives/device/drawn_run.hpp"
#include "expert_parallel/drawn_epoch.hpp"
#include "simulation/suite.hpp"

namespace tokenyard::test {
namespace {

using simulation::Random;
using simulation::SeedRun;

struct Drawn {
  uint32_t ranks = 2;
  std::vector<uint32_t> absent = {};  ///< at most one
  device_collectives::Options options;
  std::vector<CallCase> calls;
  std::vector<uint32_t> sms;  ///< [ranks]
  uint32_t differs = 0;       ///< rank that makes another call in the end; `ranks`: none
  CallCase other;             ///< that call
  uint32_t trains = 0;        ///< calls after which the host waits
  bool closes = true;         ///< otherwise ranks leave as soon as they have ended their calls
  std::optional<uint32_t> stops;
  uint32_t epoch_before = 0;
};

constexpr DataType kTypes[] = {DataType::uint8,    DataType::int16,         DataType::int32,
                               DataType::bfloat16, DataType::float16,       DataType::float32,
                               DataType::float64,  DataType::float8_e4m3fn, DataType::float8_e5m2};

constexpr Protocol kProtocols[] = {Protocol::automatic, Protocol::slots, Protocol::packets,
                                   Protocol::rings, Protocol::direct};

bool is_float(DataType type) {
  return type == DataType::bfloat16 || type == DataType::float16 || type == DataType::float32 ||
         type == DataType::float64 || type == DataType::float8_e4m3fn ||
         type == DataType::float8_e5m2;
}

CallCase draw_call(Random& random, uint32_t ranks, uint32_t elements_max) {
  CallCase of;
  of.operation = static_cast<Operation>(random.between(1, 9));
  of.type = kTypes[random.below(std::size(kTypes))];
  constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max};
  of.op = kOps[random.below(std::size(kOps))];
  of.elements = random.chance(128) ? 0 : random.between(1, elements_max);
  of.root = random.below(ranks);
  of.in_place = random.chance(512);
  of.offset = random.chance(512) ? 0 : random.below(4);
  of.seed = random.next() >> 32;
  of.call.protocol = kProtocols[random.below(std::size(kProtocols))];
  of.in_arena = of.call.protocol == Protocol::direct || random.chance(256);
  if (of.call.protocol == Protocol::direct && of.operation == Operation::all_to_all)
    of.in_place = false;
  const bool scaled = is_float(of.type) && of.op == ReduceOp::sum && random.chance(256);
  if (scaled) of.factor = 1.0 / random.between(2, 5);
  return of;
}

/// Leaves a slot empty.
void leave_empty(SeedRun& run, Drawn& drawn) {
  const uint32_t empty = run.option("absent", run.random.below(drawn.ranks));
  run.reach("empty slots");
  drawn.absent.push_back(empty);
  if (drawn.stops == empty) drawn.stops.reset();
  for (CallCase& call : drawn.calls) {
    if (call.root == empty) call.root = (empty + 1) % drawn.ranks;
    call.absent = drawn.absent;
  }
}

Drawn draw(SeedRun& run) {
  Random& random = run.random;
  Drawn drawn;
  drawn.ranks = run.option("ranks", random.between(2, 4));
  // Steps of several pieces per lane need chunks of kilobytes.
  const bool wide = run.option("wide", random.chance(100));
  if (wide) run.reach("steps of several pieces");
  drawn.options.slot_bytes = run.option("slot_bytes", 8 * random.between(1, 8));
  drawn.options.packet_bytes = run.option("packet_bytes", 16 * random.between(1, wide ? 512 : 8));
  drawn.options.key = draw_key(random);
  drawn.options.chunk_bytes =
      run.option("chunk_bytes", wide ? 512 * random.between(1, 9) : 16 * random.between(1, 4));
  drawn.options.ring_bytes =
      run.option("ring_bytes", drawn.options.chunk_bytes * random.between(1, wide ? 2 : 3));
  const uint32_t calls = wide ? 2 : random.between(2, 5);
  for (uint32_t call = 0; call < calls; ++call) {
    drawn.calls.push_back(draw_call(random, drawn.ranks, wide ? 3000 : 24));
    if (wide) {
      drawn.calls.back().offset = random.chance(256);
      drawn.calls.back().shift = random.chance(512);
      if (drawn.calls.back().call.protocol < Protocol::rings)
        drawn.calls.back().call.protocol = random.chance(512) ? Protocol::packets : Protocol::rings;
    }
    run.option("call", drawn.calls.back().text());
  }
  for (uint32_t rank = 0; rank < drawn.ranks; ++rank) drawn.sms.push_back(random.between(1, 3));
  drawn.trains = run.option("trains", random.between(1, 3));
  drawn.closes = run.option("closes", random.chance(768));
  drawn.differs = drawn.ranks;
  if (random.chance(256)) {
    drawn.differs = run.option("differs", random.between(1, drawn.ranks - 1));
    do {
      drawn.other = draw_call(random, drawn.ranks, 24);
    } while (drawn.other.operation == Operation::barrier ||
             (drawn.other.operation == drawn.calls.back().operation &&
              drawn.other.elements == drawn.calls.back().elements));
    // Data of the same protocol could be taken for those of the usual call.
    const Protocol usual = drawn.calls.back().call.protocol;
    if (usual != Protocol::direct && random.chance(512)) drawn.other.call.protocol = usual;
    run.option("other", drawn.other.text());
    if (drawn.calls.back().operation == Operation::barrier)
      drawn.calls.back().operation = Operation::all_gather;
    if (drawn.other.operation == drawn.calls.back().operation)
      drawn.other.elements = drawn.calls.back().elements + 1;
  } else if (random.chance(192)) {
    drawn.stops = run.option("stops", random.below(drawn.ranks));
  }
  drawn.epoch_before = draw_epoch_before(run);
  if (drawn.ranks > 2 && drawn.differs == drawn.ranks && random.chance(192))
    leave_empty(run, drawn);
  return drawn;
}

/// Makes the call that one rank makes otherwise: all must raise the same error.
void require_refusal(World& world, DeviceCollectives& collectives, const Drawn& drawn,
                     const CallCase& usual) {
  StartedCall call(world, world.rank() == drawn.differs ? drawn.other : usual);
  try {
    call.start(collectives);
    collectives.wait();
  } catch (const InvalidArgument& error) {
    require(error.rank == drawn.differs,
            fmt::format("rank {} is accused: {}", error.rank.value_or(99), error.what()));
    // A reduction needs data of all ranks, and those of another call are not accepted.
    const bool is_usual = world.rank() != drawn.differs;
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
    if (last && drawn.differs < drawn.ranks) return require_refusal(world, collectives, drawn, of);
    started.push_back(std::make_unique<StartedCall>(world, of));
    started.back()->start(collectives);
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
    {.name = "device_collectives",
     .what = "collectives on device tensors bring the reference's bits, or end with typed errors",
     .run = run_suite,
     .explained = {{simulation::Fault::release_made_relaxed, "memory.hpp:51", kOwnHost},
                   {simulation::Fault::sys_made_gpu, "memory.hpp:51", kOwnHost}},
     .reaches = {{"epochs wrap", 100},
                 {"epochs pass a half", 60},
                 {"steps of several pieces", 60},
                 {"empty slots", 80}},
     .seeds = 500});

}  // namespace
}  // namespace tokenyard::test
