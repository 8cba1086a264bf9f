#include "bench/across_hosts_model/model_accelerator.hpp"

#include "expert_parallel/internode/kernels/combine.hpp"
#include "expert_parallel/internode/kernels/dispatch.hpp"

namespace tokenyard::bench {

void Calls::launch(uint32_t rank, Launched launched) {
  std::unique_lock lock(mutex_);
  launches_[rank] = std::move(launched);
  const uint64_t call = calls_;
  if (++came_ < launches_.size()) {
    ended_.wait(lock, [&] { return calls_ != call; });
    return;
  }
  std::vector<Launched> all;
  for (auto& one : launches_) all.push_back(std::move(*one));
  came_ = 0;
  run_(all);
  ++calls_;
  ended_.notify_all();
}

void ModelAccelerator::launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
                              const void* params) {
  if (&kernel != &internode::dispatch_kernel.entry && &kernel != &internode::combine_kernel.entry)
    return HostAccelerator::launch(kernel, shape, stream, params);
  const auto* const bytes = static_cast<const std::byte*>(params);
  calls_.launch(
      rank_, {.kernel = &kernel, .shape = shape, .params = {bytes, bytes + kernel.params_bytes}});
}

}  // namespace tokenyard::bench
