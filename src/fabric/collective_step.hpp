/// A step that each rank takes by itself while a world is set up, and without which nobody can go
/// on: what one rank cannot do fails on all, at once and with that rank's reason.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "fabric/bootstrap.hpp"

namespace tokenyard {

/// Collective: [ranks] what `step` returned on each. If it threw on some, throws on all for the
/// first of them: OsError, whose call names the rank, for an OsError; Unsupported{what} for another
/// Error. Throws what all_gather throws, too.
std::vector<std::vector<std::byte>> collective_step(
    Bootstrap& bootstrap, const std::string& what, TimePoint until,
    const std::function<std::vector<std::byte>()>& step);

/// The same of a step that returns nothing.
template <std::invocable Step>
  requires std::is_void_v<std::invoke_result_t<Step>>
void collective_step(Bootstrap& bootstrap, const std::string& what, TimePoint until, Step step) {
  collective_step(bootstrap, what, until, [&] {
    step();
    return std::vector<std::byte>();
  });
}

}  // namespace tokenyard
