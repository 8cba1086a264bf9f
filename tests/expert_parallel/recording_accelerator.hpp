/// The host executor with behaviour otherwise seen only on GPUs: refused launches and allocations,
/// events that are not done when first queried, streams that stay busy, and work that is recorded
/// with its current parameters and run later, like a CUDA graph.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fabric/host/in_process_fabric.hpp"
#include "fabric/world_access.hpp"
#include "simt/host_accelerator.hpp"
#include "tokenyard/error.hpp"
#include "world/in_process.hpp"

namespace tokenyard::test {

class RecordingAccelerator final : public Accelerator {
 public:
  using Work = std::function<void()>;

  /// Records the work that `body` enqueues on any stream instead of running it; returns a function
  /// that runs it.
  Work record(const Work& body) {
    recorded_.emplace();
    body();
    return [works = std::move(*std::exchange(recorded_, std::nullopt))] {
      for (const Work& work : works) work();
    };
  }
  void refuse_next_launch() { refuses_ = true; }
  /// Lets `times` allocations succeed and refuses the next one, once.
  void refuse_memory_after(uint32_t times) { given_before_refusal_ = times; }
  /// Returns the shape of each kernel's last launch, by name.
  const std::map<std::string, LaunchShape>& shapes() const { return shapes_; }
  /// Returns the number of live allocations.
  size_t pieces() const { return pieces_.size(); }
  /// Returns the number of live events.
  size_t events() const { return streams_.size(); }
  /// Keeps this stream's events from being done until let_go().
  void keep_busy(Stream stream) { busy_.insert(stream.native); }
  void let_go(Stream stream) { busy_.erase(stream.native); }

  AcceleratorKind kind() const override { return AcceleratorKind::host; }
  std::string name() const override { return "recording " + host_.name(); }
  Capacity capacity() const override { return host_.capacity(); }
  void launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
              const void* params) override {
    if (std::exchange(refuses_, false))
      throw InvalidArgument("launch", "one that the test lets pass", kernel.name);
    shapes_[kernel.name] = shape;
    const auto* const bytes = static_cast<const std::byte*>(params);
    run_or_record([=, this, held = std::vector(bytes, bytes + kernel.params_bytes)] {
      host_.launch(kernel, shape, stream, held.data());
    });
  }
  void copy(void* to, const void* from, size_t bytes, Stream stream) override {
    run_or_record([=, this] { host_.copy(to, from, bytes, stream); });
  }
  void fill(void* to, int byte, size_t bytes, Stream stream) override {
    run_or_record([=, this] { host_.fill(to, byte, bytes, stream); });
  }
  bool captures(Stream) override { return recorded_.has_value(); }

  void* allocate(size_t bytes) override {
    allocated_bytes_ += bytes;
    return given([&] { return host_.allocate(bytes); });
  }
  /// Returns the bytes of all allocations so far, including freed ones.
  uint64_t allocated_bytes() const { return allocated_bytes_; }
  void free(void* memory) override {
    pieces_.erase(memory);
    host_.free(memory);
  }
  void* allocate_shared(size_t bytes) override {
    return given([&] { return host_.allocate_shared(bytes); });
  }
  void free_shared(void* memory) override {
    pieces_.erase(memory);
    host_.free_shared(memory);
  }
  Stream make_stream() override { return host_.make_stream(); }
  void free_stream(Stream stream) override { host_.free_stream(stream); }
  Event record(Stream stream) override {
    const Event event = host_.record(stream);
    streams_[event.native] = stream.native;
    return event;
  }
  void wait(Stream stream, Event event) override { host_.wait(stream, event); }
  bool done(Event event) override {
    return !asked_.insert(event.native).second && !busy_.contains(streams_.at(event.native));
  }
  void free_event(Event event) override {
    asked_.erase(event.native);
    streams_.erase(event.native);
    host_.free_event(event);
  }
  float elapsed_ms(Event begin, Event end) override { return host_.elapsed_ms(begin, end); }
  bool wait_until(TimePoint until, const std::function<bool()>& condition) override {
    return host_.wait_until(until, condition);
  }
  uint32_t read_flag(const uint32_t* flag) override { return host_.read_flag(flag); }
  void write_flag(uint32_t* flag, uint32_t value) override { host_.write_flag(flag, value); }

 private:
  template <class Allocate>
  void* given(Allocate allocate) {
    if (given_before_refusal_ && (*given_before_refusal_)-- == 0) {
      given_before_refusal_.reset();
      throw std::bad_alloc();
    }
    return *pieces_.insert(allocate()).first;
  }
  void run_or_record(Work work) {
    if (recorded_)
      recorded_->push_back(std::move(work));
    else
      work();
  }

  simt::HostAccelerator host_{[] {}};
  std::optional<std::vector<Work>> recorded_;
  std::map<std::string, LaunchShape> shapes_;
  bool refuses_ = false;
  uint64_t allocated_bytes_ = 0;
  std::optional<uint32_t> given_before_refusal_;
  std::set<void*> pieces_;
  std::set<uintptr_t> asked_, busy_;
  std::map<uintptr_t, uintptr_t> streams_;  ///< stream of each event
};

/// Creates worlds of ranks in this process, on recording accelerators.
inline std::vector<std::unique_ptr<World>> recording_worlds(uint32_t ranks,
                                                            const WorldOptions& options) {
  std::vector<std::shared_ptr<Accelerator>> accelerators;
  for (uint32_t rank = 0; rank < ranks; ++rank)
    accelerators.push_back(std::make_shared<RecordingAccelerator>());
  return join_all(accelerators, std::make_shared<InProcessFabric>(1), options);
}

inline RecordingAccelerator& recording_accelerator(World& world) {
  return static_cast<RecordingAccelerator&>(accelerator_of(world));
}

}  // namespace tokenyard::test
