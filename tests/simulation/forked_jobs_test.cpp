/// Tasks in child processes, some of which crash or run out of time.
#include "simulation/forked_jobs.hpp"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <map>

namespace tokenyard::simulation {
namespace {

std::map<uint64_t, ForkedJobs::Result> results_of(ForkedJobs& jobs, uint64_t tasks) {
  std::map<uint64_t, ForkedJobs::Result> results;
  jobs.run(
      tasks,
      [&](const ForkedJobs::Result& result) { return results.emplace(result.task, result).second; },
      [] { return true; });
  return results;
}

TEST(ForkedJobs, ATaskThatRunsOutOfTimeSaysWhatItHasNotedLast) {
  ForkedJobs jobs(2, [&](uint64_t task) {
    jobs.note("first");
    jobs.note("task " + std::to_string(task));
    if (task == 1) {
      ::alarm(1);
      while (true) ::pause();
    }
    return std::string("done");
  });
  const auto results = results_of(jobs, 4);
  ASSERT_EQ(results.size(), 4u);
  for (const auto& [task, result] : results) {
    EXPECT_EQ(result.signal, task == 1 ? SIGALRM : 0);
    EXPECT_EQ(result.crash.empty(), task != 1);
    EXPECT_EQ(result.text, task == 1 ? "task 1" : "done");
  }
}

TEST(ForkedJobs, ATaskHasNotNotedWhatTheOneBeforeItDid) {
  ForkedJobs jobs(1, [&](uint64_t task) {
    if (task == 1) ::_exit(3);
    jobs.note("noted");
    return std::string("done");
  });
  const auto results = results_of(jobs, 2);
  EXPECT_EQ(results.at(0).text, "done");
  EXPECT_EQ(results.at(1).text, "");
  EXPECT_EQ(results.at(1).signal, 0);
  EXPECT_EQ(results.at(1).crash, "exit status 3");
}

TEST(ForkedJobs, OfALongNoteTheBeginningIsKept) {
  ForkedJobs jobs(1, [&](uint64_t) -> std::string {
    jobs.note(std::string(2 * ForkedJobs::kNoteBytes, 'x'));
    ::_exit(3);
  });
  EXPECT_EQ(results_of(jobs, 1).at(0).text, std::string(ForkedJobs::kNoteBytes, 'x'));
}

}  // namespace
}  // namespace tokenyard::simulation
