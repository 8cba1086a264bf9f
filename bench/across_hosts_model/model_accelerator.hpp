/// The accelerators of all ranks of a model: the kernels of an exchange between hosts run together
/// in virtual time, once every rank has launched; all else runs on the host at once.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

#include "bench/across_hosts_model/machine.hpp"
#include "simt/host_accelerator.hpp"

namespace tokenyard::bench {

/// The meeting of all ranks' launches.
class Calls {
 public:
  using Run = std::function<void(std::vector<Launched>&)>;

  Calls(uint32_t ranks, Run run) : launches_(ranks), run_(std::move(run)) {}
  /// Returns once the call of all ranks has ended; the last rank runs it.
  void launch(uint32_t rank, Launched launched);

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<std::optional<Launched>> launches_;
  uint32_t came_ = 0;
  uint64_t calls_ = 0;
  Run run_;
};

class ModelAccelerator final : public Accelerator {
 public:
  ModelAccelerator(Calls& calls, uint32_t rank) : calls_(calls), rank_(rank) {}

  AcceleratorKind kind() const override { return AcceleratorKind::gpu; }
  std::string name() const override { return "model of a GPU"; }
  Capacity capacity() const override { return {.multiprocessors = 132, .shared_bytes = 227 << 10}; }
  void launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
              const void* params) override;

  void* allocate(size_t bytes) override { return host_.allocate(bytes); }
  void free(void* memory) override { host_.free(memory); }
  void* allocate_shared(size_t bytes) override { return host_.allocate_shared(bytes); }
  void free_shared(void* memory) override { host_.free_shared(memory); }
  void copy(void* to, const void* from, size_t bytes, Stream stream) override {
    host_.copy(to, from, bytes, stream);
  }
  void fill(void* to, int byte, size_t bytes, Stream stream) override {
    host_.fill(to, byte, bytes, stream);
  }
  Stream make_stream() override { return host_.make_stream(); }
  void free_stream(Stream stream) override { host_.free_stream(stream); }
  Event record(Stream stream) override { return host_.record(stream); }
  void wait(Stream stream, Event event) override { host_.wait(stream, event); }
  bool done(Event event) override { return host_.done(event); }
  void free_event(Event event) override { host_.free_event(event); }
  float elapsed_ms(Event begin, Event end) override { return host_.elapsed_ms(begin, end); }
  bool wait_until(TimePoint until, const std::function<bool()>& condition) override {
    return host_.wait_until(until, condition);
  }
  uint32_t read_flag(const uint32_t* flag) override { return host_.read_flag(flag); }
  void write_flag(uint32_t* flag, uint32_t value) override { host_.write_flag(flag, value); }

 private:
  Calls& calls_;
  const uint32_t rank_;
  simt::HostAccelerator host_{[] {}};
};

}  // namespace tokenyard::bench
