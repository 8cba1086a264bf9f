#include "fabric/collective_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <span>
#include <string_view>

#include "base/os_failure.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

/// Precedes a step's result or, if the step failed, the name of the failed call or the sentence of
/// an error that has no code.
struct Verdict {
  uint32_t failed = 0;
  int32_t code = 0;  ///< error code of the failed call; 0 if there is none
};

std::vector<std::byte> behind(const Verdict& verdict, std::span<const std::byte> rest) {
  std::vector<std::byte> bytes(sizeof verdict + rest.size());
  std::memcpy(bytes.data(), &verdict, sizeof verdict);
  std::ranges::copy(rest, bytes.begin() + sizeof verdict);
  return bytes;
}

std::vector<std::byte> failure(int code, std::string_view text) {
  return behind({.failed = 1, .code = code}, std::as_bytes(std::span(text)));
}

}  // namespace

std::vector<std::vector<std::byte>> collective_step(
    Bootstrap& bootstrap, const std::string& what, TimePoint until,
    const std::function<std::vector<std::byte>()>& step) {
  std::vector<std::byte> mine;
  std::exception_ptr failed;
  try {
    mine = behind({}, step());
  } catch (const OsError& error) {
    failed = std::current_exception();
    mine = failure(error.code, error.call);
  } catch (const Error& error) {
    failed = std::current_exception();
    mine = failure(0, error.what());
  }

  std::vector<std::vector<std::byte>> results;
  try {
    results = bootstrap.all_gather(mine, what, until);
  } catch (...) {
    if (failed) std::rethrow_exception(failed);  // The step failed first.
    throw;
  }
  for (uint32_t rank = 0; rank < results.size(); ++rank) {
    if (!bootstrap.present(rank)) continue;
    std::vector<std::byte>& theirs = results[rank];
    Verdict verdict;
    if (theirs.size() < sizeof verdict) {
      throw InvalidArgument(what, fmt::format("{} bytes or more", sizeof verdict),
                            fmt::format("{} bytes", theirs.size()), rank);
    }
    std::memcpy(&verdict, theirs.data(), sizeof verdict);
    theirs.erase(theirs.begin(), theirs.begin() + sizeof verdict);
    if (verdict.failed == 0) continue;
    const std::string text(reinterpret_cast<const char*>(theirs.data()), theirs.size());
    if (verdict.code == 0) throw Unsupported(what, fmt::format("rank {}: {}", rank, text));
    os_failed(fmt::format("{} on rank {}", text, rank), verdict.code);
  }
  return results;
}

}  // namespace tokenyard
