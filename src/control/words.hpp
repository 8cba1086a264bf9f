/// The names from membership/view.hpp that the control plane uses.
#pragma once

#include "membership/view.hpp"

namespace tokenyard::control {

using membership::Epoch;
using membership::GroupId;
using membership::GroupProgress;
using membership::GroupStage;
using membership::Instant;
using membership::kSlotsMax;
using membership::Member;
using membership::Sequence;
using membership::Slot;
using membership::Suspicion;
using membership::TimeoutReport;
using membership::Verdict;
using membership::View;

}  // namespace tokenyard::control
