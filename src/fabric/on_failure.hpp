/// The reaction of a world's job to a loss.
#pragma once

#include <optional>

#include "tokenyard/job.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

/// Returns what the job that the world follows does; none if it follows none.
std::optional<OnFailure> on_failure_of(const World& world);

}  // namespace tokenyard
