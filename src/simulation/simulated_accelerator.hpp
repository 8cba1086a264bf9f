/// One rank's accelerator in a simulated run. Streams are asynchronous: enqueued operations run in
/// order, at times of the schedule's choosing, while the host program continues.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "device/accelerator.hpp"
#include "simulation/simulation.hpp"

namespace tokenyard::simulation {

class SimulatedAccelerator final : public Accelerator {
 public:
  /// `host` is the rank's program. The simulation must outlive this object.
  SimulatedAccelerator(Simulation& simulation, uint32_t rank, ModelMemory::Host host);
  ~SimulatedAccelerator() override;

  AcceleratorKind kind() const override { return AcceleratorKind::simulated; }
  std::string name() const override { return "simulator"; }
  Capacity capacity() const override;
  void launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
              const void* params) override;
  void* allocate(size_t bytes) override;
  void free(void* memory) override;
  void* allocate_shared(size_t bytes) override;
  void free_shared(void* memory) override;
  void copy(void* to, const void* from, size_t bytes, Stream stream) override;
  void fill(void* to, int byte, size_t bytes, Stream stream) override;
  Stream make_stream() override;
  void free_stream(Stream stream) override;
  Event record(Stream stream) override;
  void wait(Stream stream, Event event) override;
  bool done(Event event) override;
  void free_event(Event event) override;
  float elapsed_ms(Event begin, Event end) override;
  bool wait_until(TimePoint until, const std::function<bool()>& condition) override;
  TimePoint now() const override;
  uint32_t read_flag(const uint32_t* flag) override;
  void write_flag(uint32_t* flag, uint32_t value) override;

  void drain() override;

 private:
  struct Queue;
  struct EventState {
    bool done = false;
    uint64_t at_ns = 0;
    ReleaseRef ticket;  ///< acquired by a thread that finds the event done
  };
  using Operation = std::function<void(ModelMemory::Host stream)>;

  Queue& queue(Stream stream);
  void enqueue(Stream stream, Operation operation);
  const std::shared_ptr<EventState>& event_of(Event event) const;

  Simulation& simulation_;
  uint32_t rank_;
  ModelMemory::Host host_;
  std::map<uintptr_t, std::shared_ptr<Queue>> queues_;
  std::map<uintptr_t, std::shared_ptr<EventState>> events_;
  uintptr_t streams_made_ = 0, events_made_ = 0;
  uint32_t allocated_ = 0;
};

}  // namespace tokenyard::simulation
