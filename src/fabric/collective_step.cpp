#include "fabric/collective_step.hpp"

#include <fmt/format.h>

#include <exception>
#include <span>
#include <string_view>

#include "base/os_failure.hpp"
#include "fabric/step_outcome.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

StepOutcome failure(int code, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {true, static_cast<uint32_t>(code), {bytes.begin(), bytes.end()}};
}

}  // namespace

std::vector<std::vector<std::byte>> collective_step(
    Bootstrap& bootstrap, const std::string& what, TimePoint until,
    const std::function<std::vector<std::byte>()>& step) {
  StepOutcome mine;
  std::exception_ptr failed;
  try {
    mine.bytes = step();
  } catch (const OsError& error) {
    failed = std::current_exception();
    mine = failure(error.code, error.call);
  } catch (const Error& error) {
    failed = std::current_exception();
    mine = failure(0, error.what());
  }

  std::vector<std::vector<std::byte>> results;
  try {
    results = bootstrap.all_gather(to_bytes(mine), what, until);
  } catch (...) {
    if (failed) std::rethrow_exception(failed);  // The step failed first.
    throw;
  }
  for (uint32_t rank = 0; rank < results.size(); ++rank) {
    if (!bootstrap.present(rank)) continue;
    auto outcome = from_bytes<StepOutcome>(results[rank]);
    if (!outcome) {
      throw InvalidArgument(what, "the outcome of a step, as this build sends it",
                            fmt::format("{} other bytes", results[rank].size()), rank);
    }
    results[rank] = std::move(outcome->bytes);
    if (!outcome->failed) continue;
    const std::string text(reinterpret_cast<const char*>(results[rank].data()),
                           results[rank].size());
    if (outcome->code == 0) throw Unsupported(what, fmt::format("rank {}: {}", rank, text));
    os_failed(fmt::format("{} on rank {}", text, rank), static_cast<int>(outcome->code));
  }
  return results;
}

}  // namespace tokenyard
