/// The accelerator of a rank that is a thread or a process: a launch runs the kernel to its end, on
/// the calling thread.
#pragma once

#include <functional>
#include <set>

#include "device/accelerator.hpp"
#include "simt/direct_memory.hpp"
#include "simt/executor.hpp"

namespace tokenyard::simt {

/// One per rank. Only the rank's thread may launch; any thread may use memory and flags.
class HostAccelerator : public Accelerator {
 public:
  /// `interrupt` is called periodically by everything that waits; an exception ends the wait.
  explicit HostAccelerator(std::function<void()> interrupt);
  ~HostAccelerator() override;

  AcceleratorKind kind() const override { return AcceleratorKind::host; }
  std::string name() const override { return "host executor"; }
  Capacity capacity() const override;

  void launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
              const void* params) override;

  void* allocate(size_t bytes) override;
  void free(void* memory) override;
  void* allocate_shared(size_t bytes) override { return allocate(bytes); }
  void free_shared(void* memory) override { free(memory); }
  void copy(void* to, const void* from, size_t bytes, Stream stream) override;
  void fill(void* to, int byte, size_t bytes, Stream stream) override;

  // All streams are one queue here. They are numbered so that the use of a freed one, which crashes
  // on a GPU, is an error on the host.
  Stream make_stream() override { return Stream(++last_stream_); }
  void free_stream(Stream stream) override { freed_streams_.insert(stream.native); }
  Event record(Stream stream) override;
  void wait(Stream stream, Event) override { require_living(stream); }
  bool done(Event) override { return true; }
  void free_event(Event event) override;
  float elapsed_ms(Event begin, Event end) override;

  bool wait_until(TimePoint until, const std::function<bool()>& condition) override;
  uint32_t read_flag(const uint32_t* flag) override;
  void write_flag(uint32_t* flag, uint32_t value) override;

 private:
  void require_living(Stream stream) const;

  std::function<void()> interrupt_;
  uintptr_t last_stream_ = 0;
  std::set<uintptr_t> freed_streams_;
  DirectMemory memory_;
  RoundRobin schedule_;
  WallTime time_;
  Executor executor_;
};

}  // namespace tokenyard::simt
