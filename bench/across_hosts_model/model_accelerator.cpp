#include "bench/across_hosts_model/model_accelerator.hpp"

#include "expert_parallel/internode/kernels/combine.hpp"
#include "expert_parallel/internode/kernels/dispatch.hpp"
#include "expert_parallel/low_latency/kernels/combine.hpp"
#include "expert_parallel/low_latency/kernels/dispatch.hpp"
#include "expert_parallel/low_latency/kernels/messages.hpp"

namespace tokenyard::bench {

void Calls::meet() {
  std::unique_lock lock(mutex_);
  const uint64_t call = calls_;
  if (++came_ < launches_.size()) {
    ended_.wait(lock, [&] { return calls_ != call; });
    return;
  }
  came_ = 0;
  run_(launches_);
  for (auto& of_rank : launches_) of_rank.clear();
  ++calls_;
  ended_.notify_all();
}

void ModelAccelerator::launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
                              const void* params) {
  const bool throughput =
      &kernel == &internode::dispatch_kernel.entry || &kernel == &internode::combine_kernel.entry;
  const bool low_latency = &kernel == &low_latency::dispatch_kernel.entry ||
                           &kernel == &low_latency::combine_kernel.entry ||
                           &kernel == &low_latency::messages_kernel.entry;
  if (!throughput && !low_latency) return HostAccelerator::launch(kernel, shape, stream, params);
  const auto* const bytes = static_cast<const std::byte*>(params);
  calls_.add(rank_,
             {.kernel = &kernel, .shape = shape, .params = {bytes, bytes + kernel.params_bytes}});
  if (throughput) calls_.meet();
}

}  // namespace tokenyard::bench
