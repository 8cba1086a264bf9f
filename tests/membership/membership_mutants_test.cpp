// Deliberate bugs of the protocol, one at a time: the simulator's checkers must notice each, most
// of them within 200 seeds.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "collectives/simulated/disaster.hpp"

namespace tokenyard::collectives::simulated {
namespace {

/// Seeds with all kinds of failures; seeds with kinds chosen for a bug that few failures reveal.
constexpr uint64_t kSeeds = 200, kSeedsOfKinds = 4000, kSeedsMost = 6000;

/// Returns the failure of the first seed that reveals the bug; empty if none does.
std::string caught(Mutations mutations, const std::vector<Trouble>& kinds, uint64_t seeds) {
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    simulation::Trace trace;
    simulation::SeedRun run(seed, trace, nullptr);
    try {
      Disaster(run, mutations, {}, kinds).happen();
    } catch (const std::exception& error) {
      return fmt::format("seed {}: {}", seed, error.what());
    }
  }
  return "";
}

/// Expects failures of these kinds to reveal the bug or, if they do not soon enough, of any kind.
void expect_caught(Mutations mutations, const std::vector<Trouble>& kinds) {
  std::string how = caught(mutations, kinds, kinds.empty() ? kSeeds : kSeedsOfKinds);
  if (how.empty() && !kinds.empty()) how = caught(mutations, {}, kSeedsMost);
  EXPECT_NE(how, "");
  fmt::print("{}\n", how);
}

/// Returns the kinds for bugs that few failures reveal; for other bugs, none: any may happen.
std::vector<Trouble> kinds_for(membership::Mutant mutant) {
  switch (mutant) {
    case membership::Mutant::stalls_blamed_on_all:
      return {Trouble::stuck};
    case membership::Mutant::ballot_not_compared:
    case membership::Mutant::accepted_forgotten:
    case membership::Mutant::adopted_value_ignored:
      // Several leaders that do not hear one another.
      return {Trouble::cut, Trouble::slow, Trouble::stop, Trouble::false_alarm,
              Trouble::decider_dies};
    case membership::Mutant::witness_races_ignored:
      // Two halves ask at once.
      return {Trouble::partition, Trouble::partition, Trouble::false_alarm};
    case membership::Mutant::leaders_never_replaced:
      return {Trouble::kill, Trouble::power_loss, Trouble::decider_dies};
    case membership::Mutant::goodbye_not_passed_on:
      return {Trouble::leave};
    default:
      return {};
  }
}
std::vector<Trouble> kinds_for(StandInMutant mutant) {
  if (mutant != StandInMutant::stale_epoch_accepted) return {};
  return {Trouble::slow, Trouble::stop, Trouble::false_alarm, Trouble::replace, Trouble::leave};
}

class ProtocolMutants : public testing::TestWithParam<membership::Mutant> {};
TEST_P(ProtocolMutants, AreCaught) {
  expect_caught({.protocol = GetParam()}, kinds_for(GetParam()));
}

class StandInMutants : public testing::TestWithParam<StandInMutant> {};
TEST_P(StandInMutants, AreCaught) {
  expect_caught({.stand_in = GetParam()}, kinds_for(GetParam()));
}

struct Name {
  std::string operator()(const testing::TestParamInfo<membership::Mutant>& info) const {
    switch (info.param) {
      case membership::Mutant::none:
        break;
      case membership::Mutant::quorum_off_by_one:
        return "quorum_off_by_one";
      case membership::Mutant::ballot_not_compared:
        return "ballot_not_compared";
      case membership::Mutant::accepted_forgotten:
        return "accepted_forgotten";
      case membership::Mutant::adopted_value_ignored:
        return "adopted_value_ignored";
      case membership::Mutant::decided_without_votes:
        return "decided_without_votes";
      case membership::Mutant::committed_is_least:
        return "committed_is_least";
      case membership::Mutant::unpromised_members_kept:
        return "unpromised_members_kept";
      case membership::Mutant::witness_not_asked:
        return "witness_not_asked";
      case membership::Mutant::witness_races_ignored:
        return "witness_races_ignored";
      case membership::Mutant::witness_forgets:
        return "witness_forgets";
      case membership::Mutant::epoch_not_checked:
        return "epoch_not_checked";
      case membership::Mutant::old_incarnation_accepted:
        return "old_incarnation_accepted";
      case membership::Mutant::suspicions_not_told:
        return "suspicions_not_told";
      case membership::Mutant::stalls_blamed_on_all:
        return "stalls_blamed_on_all";
      case membership::Mutant::admitted_unasked:
        return "admitted_unasked";
      case membership::Mutant::recovered_by_some:
        return "recovered_by_some";
      case membership::Mutant::leaders_never_replaced:
        return "leaders_never_replaced";
      case membership::Mutant::quorum_is_enough:
        return "quorum_is_enough";
      case membership::Mutant::goodbye_not_passed_on:
        return "goodbye_not_passed_on";
      case membership::Mutant::wishes_never_late:
        return "wishes_never_late";  // tested in recovery_mutants_test.cpp
      case membership::Mutant::waiting_members_evicted:
        return "waiting_members_evicted";  // tested in composition_test.cpp
    }
    return "none";
  }
  std::string operator()(const testing::TestParamInfo<StandInMutant>& info) const {
    switch (info.param) {
      case StandInMutant::none:
        break;
      case StandInMutant::commits_before_the_round_is_over:
        return "commits_before_the_round_is_over";
      case StandInMutant::commits_while_frozen:
        return "commits_while_frozen";
      case StandInMutant::undo_forgotten:
        return "undo_forgotten";
      case StandInMutant::stale_epoch_accepted:
        return "stale_epoch_accepted";
      case StandInMutant::sequence_not_restored:
        return "sequence_not_restored";
    }
    return "none";
  }
};

/// Returns all kinds except `none`, up to and including `last`.
template <class Kind>
std::vector<Kind> all_to(Kind last) {
  std::vector<Kind> kinds;
  for (int kind = 1; kind <= static_cast<int>(last); ++kind)
    kinds.push_back(static_cast<Kind>(kind));
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Membership, ProtocolMutants,
                         testing::ValuesIn(all_to(membership::Mutant::goodbye_not_passed_on)),
                         Name());
INSTANTIATE_TEST_SUITE_P(Membership, StandInMutants,
                         testing::ValuesIn(all_to(StandInMutant::sequence_not_restored)), Name());

}  // namespace
}  // namespace tokenyard::collectives::simulated
