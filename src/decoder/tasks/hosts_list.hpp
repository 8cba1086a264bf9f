/// The tasks of a dense decoder whose ranks are on several hosts (between_hosts.hpp).
#pragma once

#include "decoder/tasks/between_hosts.hpp"
#include "decoder/tasks/dense_list.hpp"

namespace tokenyard::megakernel {

using HostsDenseTasks = DenseTaskList<Together<1>, SendBest<Together<1>>, NextToken,
                                      SendSums<Together<1>>, AddSums<Together<1>>>;
template <uint32_t sequences>
using HostsBatchedDenseTasks =
    DenseTaskList<Together<sequences>, SendBest<Together<sequences>>,
                  NextTokens<Together<sequences>>, SendSums<Together<sequences>>,
                  AddSums<Together<sequences>>>;

}  // namespace tokenyard::megakernel
