// The oracle itself, against verdicts that were published or derived by hand from the ISA's text.

#include "simulation/ptx_axioms.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "simulation/litmus_shapes.hpp"

namespace tokenyard::litmus {
namespace {

enum class Fences : uint8_t { none, acq_rel, sc, halves, wrong_halves };

/// A published test: a shape, its orders, scope and fences, and the outcome in question.
struct Published {
  const char* name;
  const char* shape;
  Order writes, reads;
  Scope scope;
  Fences fences;
  bool other_rank;  ///< true: threads alternate between two ranks; false: all in one block
  Outcome asked;    ///< reads in order, then final values
  bool allowed;
};

/// Returns the order of the fence before an operation. `halves`: release before a write, acquire
/// before a read; `wrong_halves`: the reverse.
Order order_of_fence(Fences fences, const Operation& before) {
  if (fences != Fences::halves && fences != Fences::wrong_halves) return Order::acq_rel;
  return before.writes() == (fences == Fences::halves) ? Order::release : Order::acquire;
}

Program fill_in(const Published& test) {
  const auto found = std::find_if(shapes().begin(), shapes().end(),
                                  [&](const Program& shape) { return shape.name == test.shape; });
  Program program = *found;
  for (size_t index = 0; index < program.threads.size(); ++index) {
    Thread& thread = program.threads[index];
    thread.rank = test.other_rank ? index % 2 : 0;
    std::vector<Operation> operations;
    for (Operation operation : thread.operations) {
      operation.order = operation.reads() ? test.reads : test.writes;
      operation.scope = test.scope;
      if (!operations.empty() && test.fences != Fences::none)
        operations.push_back({test.fences == Fences::sc ? Kind::fence_sequential : Kind::fence, 0,
                              0, order_of_fence(test.fences, operation), test.scope});
      operations.push_back(operation);
    }
    thread.operations = std::move(operations);
  }
  return program;
}

constexpr Order kRelaxed = Order::relaxed;
constexpr Order kRelease = Order::release;
constexpr Order kAcquire = Order::acquire;

const Published kPublished[] = {
    {"MP", "MP", kRelaxed, kRelaxed, Scope::sys, Fences::none, true, {1, 0, 1, 1}, true},
    {"MP+rel+acq", "MP", kRelease, kAcquire, Scope::sys, Fences::none, true, {1, 0, 1, 1}, false},
    {"MP+rel+rlx", "MP", kRelease, kRelaxed, Scope::sys, Fences::none, true, {1, 0, 1, 1}, true},
    {"MP+rlx+acq", "MP", kRelaxed, kAcquire, Scope::sys, Fences::none, true, {1, 0, 1, 1}, true},
    {"MP+fences", "MP", kRelaxed, kRelaxed, Scope::sys, Fences::acq_rel, true, {1, 0, 1, 1}, false},
    {"MP+halves", "MP", kRelaxed, kRelaxed, Scope::sys, Fences::halves, true, {1, 0, 1, 1}, false},
    {"MP+wrong halves",
     "MP",
     kRelaxed,
     kRelaxed,
     Scope::sys,
     Fences::wrong_halves,
     true,
     {1, 0, 1, 1},
     true},
    {"MP+gpu apart", "MP", kRelease, kAcquire, Scope::gpu, Fences::none, true, {1, 0, 1, 1}, true},
    {"MP+cta near",
     "MP",
     kRelease,
     kAcquire,
     Scope::block,
     Fences::none,
     false,
     {1, 0, 1, 1},
     false},
    {"SB", "SB", kRelaxed, kRelaxed, Scope::sys, Fences::none, true, {0, 0, 1, 1}, true},
    {"SB+rel+acq", "SB", kRelease, kAcquire, Scope::sys, Fences::none, true, {0, 0, 1, 1}, true},
    {"SB+fence.acq_rel",
     "SB",
     kRelaxed,
     kRelaxed,
     Scope::sys,
     Fences::acq_rel,
     true,
     {0, 0, 1, 1},
     true},
    {"SB+fence.sc", "SB", kRelaxed, kRelaxed, Scope::sys, Fences::sc, true, {0, 0, 1, 1}, false},
    {"SB+fence.sc.gpu apart",
     "SB",
     kRelaxed,
     kRelaxed,
     Scope::gpu,
     Fences::sc,
     true,
     {0, 0, 1, 1},
     true},
    {"2+2W", "2+2W", kRelaxed, kRelaxed, Scope::sys, Fences::none, true, {1, 1}, true},
    {"2+2W+rel", "2+2W", kRelease, kRelaxed, Scope::sys, Fences::none, true, {1, 1}, true},
    {"2+2W+fence.sc", "2+2W", kRelaxed, kRelaxed, Scope::sys, Fences::sc, true, {1, 1}, false},
    {"R+rel+acq", "R", kRelease, kAcquire, Scope::sys, Fences::none, true, {0, 1, 2}, true},
    {"R+fence.sc", "R", kRelaxed, kRelaxed, Scope::sys, Fences::sc, true, {0, 1, 2}, false},
    {"S", "S", kRelaxed, kRelaxed, Scope::sys, Fences::none, true, {1, 2, 1}, true},
    {"S+rel+acq", "S", kRelease, kAcquire, Scope::sys, Fences::none, true, {1, 2, 1}, false},
    {"LB", "LB", kRelaxed, kRelaxed, Scope::sys, Fences::none, true, {1, 1, 1, 1}, true},
    {"LB+rel+acq", "LB", kRelease, kAcquire, Scope::sys, Fences::none, true, {1, 1, 1, 1}, false},
    {"WRC", "WRC", kRelaxed, kRelaxed, Scope::sys, Fences::none, true, {1, 1, 0, 1, 1}, true},
    {"WRC+rel+acq",
     "WRC",
     kRelease,
     kAcquire,
     Scope::sys,
     Fences::none,
     true,
     {1, 1, 0, 1, 1},
     false},
    {"IRIW+rel+acq",
     "IRIW",
     kRelease,
     kAcquire,
     Scope::sys,
     Fences::none,
     true,
     {1, 0, 1, 0, 1, 1},
     true},
    {"IRIW+fence.acq_rel",
     "IRIW",
     kRelaxed,
     kRelaxed,
     Scope::sys,
     Fences::acq_rel,
     true,
     {1, 0, 1, 0, 1, 1},
     true},
    {"IRIW+fence.sc",
     "IRIW",
     kRelaxed,
     kRelaxed,
     Scope::sys,
     Fences::sc,
     true,
     {1, 0, 1, 0, 1, 1},
     false},
    {"ISA2+rel+acq",
     "ISA2",
     kRelease,
     kAcquire,
     Scope::sys,
     Fences::none,
     true,
     {1, 1, 0, 1, 1, 1},
     false},
    {"ISA2", "ISA2", kRelaxed, kRelaxed, Scope::sys, Fences::none, true, {1, 1, 0, 1, 1, 1}, true},
    {"CoRR", "CoRR", kRelaxed, kRelaxed, Scope::sys, Fences::none, true, {1, 0, 1}, false},
    {"CoWR", "CoWR", kRelaxed, kRelaxed, Scope::sys, Fences::none, true, {2, 1}, false},
};

class PublishedVerdicts : public testing::TestWithParam<Published> {};

TEST_P(PublishedVerdicts, AreTheOraclesToo) {
  const Program program = fill_in(GetParam());
  EXPECT_EQ(judge(program).allowed.contains(GetParam().asked), GetParam().allowed)
      << text(program) << "\n"
      << text(program, GetParam().asked);
}

INSTANTIATE_TEST_SUITE_P(Litmus, PublishedVerdicts, testing::ValuesIn(kPublished),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); },
                               '_');
                           return name;
                         });

TEST(PtxAxioms, LoadBufferingIsAllowedButNotReachable) {
  for (const Published& test : kPublished) {
    if (std::string(test.name) != "LB") continue;
    const Verdict verdict = judge(fill_in(test));
    EXPECT_TRUE(verdict.allowed.contains(test.asked));
    EXPECT_FALSE(verdict.reachable.contains(test.asked));
  }
}

TEST(PtxAxioms, ScopesThatDoNotReachAreRaces) {
  for (const Published& test : kPublished) {
    const bool apart = test.other_rank && test.scope != Scope::sys;
    const Verdict verdict = judge(fill_in(test));
    EXPECT_EQ(verdict.always_races, apart) << test.name;
    EXPECT_EQ(verdict.never_races, !apart) << test.name;
  }
}

TEST(PtxAxioms, AnUpdatePassesARelease) {
  // x = 1; store.release y = 1 | exchange.relaxed y = 2 | load.acquire y == 2; x
  Program program =
      shape("MP+RMW", 2, {{write(kX, 1), write(kY, 1)}, {update(kY, 2)}, {read(kY), read(kX)}});
  program.threads[1].rank = 1;
  program.threads[0].operations[1].order = Order::release;
  program.threads[2].operations[0].order = Order::acquire;
  // Outcomes: the update's read, y, x, then x and y at the end.
  EXPECT_FALSE(judge(program).allowed.contains({1, 2, 0, 1, 2}));
  EXPECT_TRUE(judge(program).allowed.contains({0, 2, 0, 1, 1}));
  EXPECT_TRUE(judge(program).allowed.contains({1, 2, 1, 1, 2}));
}

}  // namespace
}  // namespace tokenyard::litmus
