/// A participant that fails is called once more, to be fenced.
#include "control/participant_thread.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace tokenyard::control {
namespace {

using ::testing::ElementsAre;

class Failing final : public Participant {
 public:
  std::vector<GroupProgress> freeze(Epoch) override { return {}; }
  void install(const Verdict& verdict, const Contacts&) override {
    calls.push_back("install");
    if (verdict.next.epoch == 2) throw std::runtime_error("out of memory");
  }
  void fenced(Epoch epoch, const std::string& why) override {
    calls.push_back("fenced: " + why);
    fenced_in = epoch;
  }
  void quorum_missing(const std::vector<Slot>&, uint32_t) override {}

  std::vector<std::string> calls;
  Epoch fenced_in = 0;
};

TEST(ParticipantThread, CallsAParticipantThatHasFailedOnceMore) {
  Failing participant;
  std::vector<std::string> failures;
  ParticipantThread thread([&](const std::string& why) { failures.push_back(why); });
  EXPECT_FALSE(thread.serves());
  thread.serve(participant);
  for (const Epoch epoch : {1, 2, 3}) {
    thread.post([epoch](Participant& called) { called.install({.next = {.epoch = epoch}}, {}); });
  }
  thread.publish_fenced(7, "it failed");
  thread.post([](Participant& called) { called.install({}, {}); });
  thread.join();
  EXPECT_THAT(participant.calls, ElementsAre("install", "install", "fenced: it failed"));
  EXPECT_EQ(participant.fenced_in, 7u);
  EXPECT_THAT(failures, ElementsAre("out of memory"));
}

}  // namespace
}  // namespace tokenyard::control
