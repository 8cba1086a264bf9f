/// Runs a local setup step that every rank must complete: if it fails on one rank, it fails on all
/// of them at once, with that rank's reason.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "fabric/bootstrap.hpp"

namespace tokenyard {

/// Collective. Returns [ranks] the result of `step` on each, empty for an absent rank. If `step`
/// threw on some ranks, throws on all ranks for the lowest of them: OsError, whose call names the
/// rank, for an OsError; Unsupported{what} for another Error. Also throws what all_gather throws.
std::vector<std::vector<std::byte>> collective_step(
    Bootstrap& bootstrap, const std::string& what, TimePoint until,
    const std::function<std::vector<std::byte>()>& step);

/// The same for a step that returns nothing.
template <std::invocable Step>
  requires std::is_void_v<std::invoke_result_t<Step>>
void collective_step(Bootstrap& bootstrap, const std::string& what, TimePoint until, Step step) {
  collective_step(bootstrap, what, until, [&] {
    step();
    return std::vector<std::byte>();
  });
}

}  // namespace tokenyard
