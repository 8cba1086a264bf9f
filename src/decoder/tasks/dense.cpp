#include "decoder/tasks/dense.hpp"

#include <fmt/core.h>

#include "decoder/tasks/hosts_list.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {

// CMakeLists.txt lists these kernels, each with its task list.
TOKENYARD_DECLARE_KERNEL(dense_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(batch_2_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(batch_4_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(batch_8_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(shared_dense_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(shared_batch_2_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(shared_batch_4_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(shared_batch_8_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(hosts_dense_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(hosts_batch_2_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(hosts_batch_4_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(hosts_batch_8_kernel, RunParams);

namespace {

template <class List>
const TaskSet& set_of(const Kernel<RunParams>& kernel) {
  static const TaskSet set = task_set<List>(kernel.entry);
  return set;
}

/// Returns the set of the kernel for these ranks.
template <class OfOne, class OfHost, class OfHosts>
const TaskSet& set_of(DenseRanks ranks, const Kernel<RunParams>& of_one,
                      const Kernel<RunParams>& of_host, const Kernel<RunParams>& of_hosts) {
  switch (ranks) {
    case DenseRanks::one:
      return set_of<OfOne>(of_one);
    case DenseRanks::on_one_host:
      return set_of<OfHost>(of_host);
    case DenseRanks::on_several_hosts:
      return set_of<OfHosts>(of_hosts);
  }
  throw InternalError("a kind of ranks without a kernel");
}
template <uint32_t sequences>
const TaskSet& batched_set_of(DenseRanks ranks, const Kernel<RunParams>& of_one,
                              const Kernel<RunParams>& of_host, const Kernel<RunParams>& of_hosts) {
  return set_of<BatchedDenseTasks<sequences>, SharedBatchedDenseTasks<sequences>,
                HostsBatchedDenseTasks<sequences>>(ranks, of_one, of_host, of_hosts);
}

}  // namespace

const TaskSet& dense_tasks(const DenseKernel& kind) {
  switch (kind.sequences) {
    case 1:
      return set_of<DenseTasks, SharedDenseTasks, HostsDenseTasks>(
          kind.ranks, dense_kernel, shared_dense_kernel, hosts_dense_kernel);
    case 2:
      return batched_set_of<2>(kind.ranks, batch_2_kernel, shared_batch_2_kernel,
                               hosts_batch_2_kernel);
    case 4:
      return batched_set_of<4>(kind.ranks, batch_4_kernel, shared_batch_4_kernel,
                               hosts_batch_4_kernel);
    case 8:
      return batched_set_of<8>(kind.ranks, batch_8_kernel, shared_batch_8_kernel,
                               hosts_batch_8_kernel);
    default:
      throw InvalidArgument("sequences", "1, 2, 4 or 8", fmt::format("{}", kind.sequences));
  }
}

}  // namespace tokenyard::megakernel
