/// The names from membership/view.hpp that the collectives use, and a rank's contact.
#pragma once

#include "control/contact.hpp"
#include "membership/view.hpp"

namespace tokenyard::collectives {

using control::Contact;
using control::Contacts;
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

}  // namespace tokenyard::collectives
