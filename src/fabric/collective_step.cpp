#include "fabric/collective_step.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <exception>
#include <new>
#include <span>
#include <string_view>

#include "base/os_failure.hpp"
#include "fabric/step_outcome.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/error.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

namespace {

using Gathered = std::vector<std::vector<std::byte>>;

StepOutcome failure(int code, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {true, static_cast<uint32_t>(code), {bytes.begin(), bytes.end()}};
}

StepOutcome refusal(const InvalidArgument& error) {
  StepOutcome outcome = failure(0, error.what());
  outcome.argument = error.argument;
  outcome.expected = error.expected;
  outcome.seen = error.seen;
  return outcome;
}

[[noreturn]] void throw_for(const StepOutcome& outcome, const std::string& what, uint32_t rank) {
  const std::string text(reinterpret_cast<const char*>(outcome.bytes.data()), outcome.bytes.size());
  if (!outcome.argument.empty())
    throw InvalidArgument(outcome.argument, outcome.expected, outcome.seen, rank);
  if (outcome.code == 0) throw Unsupported(what, fmt::format("rank {}: {}", rank, text));
  os_failed(fmt::format("{} on rank {}", text, rank), static_cast<int>(outcome.code));
}

Gathered run_step(const std::string& what, const std::function<std::vector<std::byte>()>& step,
                  const std::function<Gathered(std::span<const std::byte> mine)>& all_gather,
                  const std::function<bool(uint32_t rank)>& present) {
  StepOutcome mine;
  std::exception_ptr failed;
  try {
    mine.bytes = step();
  } catch (const OsError& error) {
    failed = std::current_exception();
    mine = failure(error.code, error.call);
  } catch (const InvalidArgument& error) {
    failed = std::current_exception();
    mine = refusal(error);
  } catch (const Error& error) {
    failed = std::current_exception();
    mine = failure(0, error.what());
  } catch (const std::bad_alloc&) {
    failed = std::current_exception();
    mine = failure(ENOMEM, what);
  }

  Gathered results;
  try {
    results = all_gather(to_bytes(mine));
  } catch (...) {
    if (failed) std::rethrow_exception(failed);  // The step failed first.
    throw;
  }
  for (uint32_t rank = 0; rank < results.size(); ++rank) {
    if (!present(rank)) continue;
    auto outcome = from_bytes<StepOutcome>(results[rank]);
    if (!outcome) {
      throw InvalidArgument(what, "the outcome of a step, as this build sends it",
                            fmt::format("{} other bytes", results[rank].size()), rank);
    }
    if (outcome->failed) throw_for(*outcome, what, rank);
    results[rank] = std::move(outcome->bytes);
  }
  return results;
}

}  // namespace

std::vector<std::vector<std::byte>> collective_step(
    Bootstrap& bootstrap, const std::string& what, TimePoint until,
    const std::function<std::vector<std::byte>()>& step) {
  return run_step(
      what, step,
      [&](std::span<const std::byte> mine) { return bootstrap.all_gather(mine, what, until); },
      [&](uint32_t rank) { return bootstrap.present(rank); });
}

void collective_step(World& world, const std::string& what, const std::function<void()>& step) {
  run_step(
      what,
      [&] {
        step();
        return std::vector<std::byte>();
      },
      [&](std::span<const std::byte> mine) { return world.all_gather(mine, what); },
      [&](uint32_t rank) { return is_present(world, rank); });
}

ArenaBlock allocate_on_all(World& world, size_t bytes, const std::string& what, ArenaEnd end) {
  ArenaBlock block;
  collective_step(world, what, [&] { block = arena_of(world).allocate(bytes, Stream{}, end); });
  return block;
}

}  // namespace tokenyard
