// A leaving rank takes care of the messages it has sent: they arrive, or it is told that they do
// not.
#include <gmock/gmock.h>

#include <latch>
#include <thread>

#include "collectives/elastic_job.hpp"

namespace tokenyard::collectives {
namespace {

using namespace std::chrono_literals;

/// Two ranks of this process. The second polls nothing until the first has left.
void one_goes_then_the_other(const std::function<void(std::unique_ptr<Collectives>)>& goes,
                             const std::function<void(Collectives&)>& stays,
                             std::chrono::nanoseconds timeout = 10s) {
  const ElasticJob place(2);
  std::latch gone(1);
  const auto run = [&](uint32_t rank) {
    try {
      CollectivesOptions options = place.options(rank);
      options.timeout = timeout;
      auto collectives = Collectives::connect(options);
      collectives->world().barrier().wait();
      if (rank == 0) {
        goes(std::move(collectives));
        gone.count_down();
      } else {
        gone.wait();
        stays(*collectives);
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << ": " << error.what();
      if (rank == 0) gone.count_down();
    }
  };
  std::thread first(run, 0), second(run, 1);
  first.join();
  second.join();
}

Work send(Collectives& from, const std::vector<float>& values, uint64_t tag) {
  return from.world().send({values.data(), {values.size()}}, 1, tag, {.timeout = 10s});
}

void expect_messages(Collectives& at, size_t elements) {
  for (uint64_t tag = 0; tag < 20; ++tag) {
    std::vector<float> got(elements);
    at.world().receive({got.data(), {got.size()}}, 0, tag).wait();
    EXPECT_EQ(got, std::vector<float>(elements, static_cast<float>(tag)));
  }
}

TEST(Collectives, DeliverWhatTheyHaveSentBeforeTheyLeave) {
  constexpr size_t elements = 2000;  // 20 of them exceed a ring
  for (const bool by_leave : {true, false}) {
    one_goes_then_the_other(
        [&](std::unique_ptr<Collectives> goes) {
          for (uint64_t tag = 0; tag < 20; ++tag) {
            send(*goes, std::vector<float>(elements, static_cast<float>(tag)), tag).wait();
          }
          if (by_leave) goes->leave();
        },
        [&](Collectives& stays) { expect_messages(stays, elements); });
  }
}

TEST(Collectives, SayWhoHasNotTakenAMessageWhenTheyLeave) {
  const std::vector<float> large(1 << 20, 1);
  one_goes_then_the_other(
      [&](std::unique_ptr<Collectives> goes) {
        Work work = send(*goes, large, 1);
        try {
          goes->leave();
          ADD_FAILURE() << "nobody has received it";
        } catch (const PeerTimeout& error) {
          EXPECT_EQ(error.facts.rank, 1u);
          EXPECT_THAT(error.facts.phase, ::testing::HasSubstr("messages sent to it"));
        }
        EXPECT_THROW(work.wait(), Cancelled) << "its own deadline is later";
        EXPECT_THROW(goes->world().barrier().wait(), Cancelled);
      },
      [](Collectives&) {}, 300ms);
}

}  // namespace
}  // namespace tokenyard::collectives
