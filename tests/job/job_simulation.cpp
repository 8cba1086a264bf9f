// Suite `job`: a job's control plane together with the exchanges of its ranks. Ranks die, stop,
// wake, leave and are replaced between any two steps of the membership and of kernels.
#include "job/simulated/exchanging_job.hpp"

namespace tokenyard::job_test {
namespace {

const bool registered = simulation::add_suite(
    {.name = "job",
     .what = "ranks exchange tokens and die, hang, wake, leave and join; survivors go on alike",
     .run = [](simulation::SeedRun& run) { ExchangingJob(run).live(); },
     .reaches = {{"a rank dies in a call", 1000},
                 {"a rank dies while a world is made", 1000},
                 {"a rank stops in a call", 1000},
                 {"a rank wakes that is out", 1000},
                 {"a rank is fenced", 1000},
                 {"a rank makes a finished call again", 1000},
                 {"a newcomer takes part in a later call", 1000},
                 {"low latency goes on without a rank", 1000},
                 {"survivors rebuild a world", 1000}},
     .seeds = 1500});

}  // namespace
}  // namespace tokenyard::job_test
