/// The errors of requests that a network refused.
#pragma once

#include <string>
#include <vector>

#include "device/accelerator.hpp"
#include "device/network.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

class AbortFlag;
class Bootstrap;

NetworkFault network_fault(const NetworkFaultDetail& detail, uint32_t peer,
                           const std::string& phase, uint64_t expected, uint64_t seen);
/// Throws the error of the first queue that has a refused request. Null where there is no queue.
void check_refusals(Accelerator& accelerator, const std::vector<QueuePair*>& pairs,
                    const std::string& phase);

/// Ends what waits for a network whose thread has failed for the reason `why`: the waits of all
/// ranks, and this rank's for each rank of another host, `far`, of which nothing arrives any more.
void end_network(Bootstrap& bootstrap, AbortFlag& abort_flag, const std::vector<bool>& far,
                 const std::string& why);

}  // namespace tokenyard
