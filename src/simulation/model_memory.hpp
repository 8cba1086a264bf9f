/// Memory that behaves as badly as the PTX memory model allows, determined by a seed.
///
/// Strong accesses choose among the stores of their location (history.hpp). Weak stores and bulk
/// copies reach memory late (late_stores.hpp, bulk_agent.hpp). Ordinary C++ accesses act on real
/// memory; the compiler's instrumentation reports them. Every access is checked against our own
/// happens-before clocks (race_detector.hpp), not by the sanitizer's library: these clocks know
/// scopes and the async proxy, give the same result with every compiler and in every run, and
/// handle tens of thousands of fibers.
///
/// Missing order is found whatever the timing: without a release, acquire, barrier or proxy fence,
/// or with too narrow a scope, accesses race. Late stores show the effect on data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "simt/memory.hpp"
#include "simulation/actor.hpp"
#include "simulation/bulk_agent.hpp"
#include "simulation/clock_slots.hpp"
#include "simulation/completions.hpp"
#include "simulation/finding.hpp"
#include "simulation/history.hpp"
#include "simulation/late_stores.hpp"
#include "simulation/mutation.hpp"
#include "simulation/policy.hpp"
#include "simulation/race_detector.hpp"
#include "simulation/region.hpp"
#include "simulation/trace.hpp"

namespace tokenyard::simulation {

class ModelMemory final : public simt::Memory {
 public:
  struct Options {
    Policy policy;
    Random random;
    Trace* trace;                ///< outlives the memory
    Mutator* mutator = nullptr;  ///< null: kernels run as written
  };
  explicit ModelMemory(const Options& options);
  ~ModelMemory() override;

  // The memory that the model knows.
  void add_region(std::string name, void* base, size_t bytes, uint32_t rank);
  void remove_region(void* base);

  /// The number of a thread of host code: a rank's program, or a stream.
  using Host = uint32_t;
  Host add_host(uint32_t rank, std::string label);
  /// Makes all that `from` has done happen before everything that an acquirer of the result does.
  ReleaseRef release(Host from) { return hosts_[from]->release(Scope::sys); }
  void acquire(Host to, const ReleaseRef& ticket) { join(*hosts_[to], *ticket); }
  /// Counts progress among hosts, for which another thread may be waiting.
  void happened() { ++progress_; }
  /// Makes `host` launch the next grid of its rank, and know its accesses when it ends.
  void launch_from(Host host);
  uint32_t read_flag(Host host, const uint32_t* flag);
  void write_flag(Host host, uint32_t* flag, uint32_t value);
  /// Checks an ordinary access by host code.
  void host_access(Host host, const void* address, size_t bytes, bool write, CodeAddress where);

  /// Stops a rank; its stores and copies in flight land, vanish or tear.
  void stop(uint32_t rank, InFlight fate);

  const Findings& findings() const { return findings_; }
  uint64_t steps() const { return step_; }

  // simt::Memory
  void grid_begins(uint32_t rank, uint32_t grid,
                   std::span<const simt::ThreadName> threads) override;
  void block_begins(const simt::ThreadName& first, void* shared, size_t bytes) override;
  void thread_ends(const simt::ThreadName& me) override;
  void grid_ends(uint32_t rank, uint32_t grid) override;
  void synchronise(std::span<const simt::ThreadName* const> arrived,
                   std::span<const simt::ThreadName* const> waited) override;

  void load(const simt::ThreadName& me, const void* from, void* value, uint32_t bytes, Order order,
            Scope scope, CodeAddress where) override;
  void store(const simt::ThreadName& me, void* to, const void* value, uint32_t bytes, Order order,
             Scope scope, CodeAddress where) override;
  void modify(const simt::ThreadName& me, simt::Modify what, void* at, const void* operand,
              void* old, uint32_t bytes, Order order, Scope scope, CodeAddress where) override;
  void compare_exchange(const simt::ThreadName& me, void* at, const void* expected,
                        const void* desired, void* old, uint32_t bytes, Order order, Scope scope,
                        CodeAddress where) override;
  void fence(const simt::ThreadName& me, Fence kind, Scope scope, CodeAddress where) override;

  void completion_init(const simt::ThreadName& me, void* completion, uint32_t arrivals,
                       CodeAddress where) override;
  void completion_arrive(const simt::ThreadName& me, void* completion, uint32_t expected_bytes,
                         CodeAddress where) override;
  bool completion_done(const simt::ThreadName& me, void* completion, uint32_t parity,
                       CodeAddress where) override;
  void fence_async(const simt::ThreadName& me, CodeAddress where) override;
  void bulk_load(const simt::ThreadName& me, void* to_shared, const void* from, uint32_t bytes,
                 void* completion, CodeAddress where) override;
  void bulk_store(const simt::ThreadName& me, void* to, const void* from_shared, uint32_t bytes,
                  CodeAddress where) override;
  void bulk_commit(const simt::ThreadName& me, CodeAddress where) override;
  bool bulk_wait(const simt::ThreadName& me, uint32_t groups, bool sources_only,
                 CodeAddress where) override;

  void plain_access(const simt::ThreadName& me, const void* address, uint32_t bytes, bool write,
                    CodeAddress where) override;
  bool skip_barrier(const simt::ThreadName& me, CodeAddress where) override;
  bool mutated(const simt::ThreadName& me, CodeAddress where) override;

  bool step() override { return step(false); }
  bool step_when_idle() override { return step(true); }
  uint64_t progress() const override { return progress_; }

 private:
  struct Grid {
    uint32_t rank, number;
    Host launcher;
    std::vector<std::unique_ptr<ThreadState>> threads;
    std::vector<StoreGroups> stores;  ///< by thread
    struct Shared {
      std::byte* base;
      size_t bytes;
    };
    std::vector<Shared> shared;
    std::vector<uint32_t> loads;  ///< actors of its completions
  };
  struct Running {
    ThreadState* state = nullptr;
    StoreGroups* stores = nullptr;
    Grid* grid = nullptr;
  };
  /// The fence.sc of one scope at one place: those whose scopes match are ordered as they execute.
  struct Sequential {
    Scope scope;
    Place place;
    Clock known, async;
  };

  Running& running(const simt::ThreadName& me) { return running_[me.id]; }
  Chance chance() { return {random_, policy_, step_}; }
  bool faulty(Fault fault, CodeAddress where) {
    return mutator_ != nullptr && mutator_->applies(fault, where);
  }
  void mutate(Order& order, Scope& scope, CodeAddress where);
  uint32_t add_actor(ActorKind kind, Slot slot, const Place& place, const simt::ThreadName& name);
  void misuse(std::string title, const ThreadState& me, CodeAddress where);
  void forget_region(std::byte* base, size_t bytes);

  Region* region_of(const void* at, size_t bytes, const ThreadState& me, const char* what,
                    CodeAddress where);
  void touch(ThreadState& me, Region& region, const void* at, uint32_t bytes, AccessKind kind,
             Order order, Scope scope, CodeAddress where);
  void record(const char* what, const ThreadState& me, const Region& region, const void* at,
              const void* value, uint32_t bytes);

  // The words' implementations, on a thread's state.
  /// Returns the message that the load read.
  const Message& strong_load(ThreadState& me, Region& region, const void* from, void* value,
                             uint32_t bytes, Order order, Scope scope, CodeAddress where);
  void strong_store(ThreadState& me, Region& region, void* to, const void* value, uint32_t bytes,
                    Order order, Scope scope, CodeAddress where);
  /// `update(value)` changes the old value in place, or returns false to leave it.
  template <class Update>
  void read_modify_write(ThreadState& me, Region& region, void* at, void* old, uint32_t bytes,
                         Order order, Scope scope, CodeAddress where, Update update);

  History& history(Region& region, const void* at, uint32_t bytes);
  void note_unsettled(History& history);
  void acquire(ThreadState& me, const History& history, const Message& message, Order order,
               Scope scope);
  void join(ThreadState& me, const Release& release);
  void acquire(ThreadState& me, const ReleaseRef& release);
  std::vector<ReleaseRef> releases_of(ThreadState& me, History& history, Order order, Scope scope);
  void carry_on(std::vector<ReleaseRef>& releases, const Message& read, Scope scope,
                const ThreadState& me);

  void start_stores(Running& thread);
  bool valid_copy(const ThreadState& me, const void* to, const void* from, uint32_t bytes,
                  const char* what, CodeAddress where);
  void touch_copy(ThreadState& me, Region& region, const void* at, uint32_t bytes, AccessKind kind,
                  uint32_t agent, Epoch epoch, CodeAddress where);
  CompletionState* completion_of(ThreadState& me, void* completion, const char* what,
                                 CodeAddress where);
  bool step(bool idle);
  bool settle_some();

  Policy policy_;
  Random random_;
  Trace& trace_;
  Mutator* mutator_;
  uint64_t step_ = 0, progress_ = 0;

  std::vector<Actor> actors_;
  Regions regions_;
  Findings findings_{actors_, regions_};
  RaceDetector races_{actors_, findings_};
  Slots slots_;
  Completions completions_;
  LateStores late_;
  BulkAgent agent_{completions_};

  std::vector<Running> running_;  ///< by ThreadName::id
  std::vector<std::unique_ptr<Grid>> grids_;
  std::vector<std::unique_ptr<ThreadState>> hosts_;
  std::vector<Host> launchers_;  ///< by rank
  std::vector<Sequential> sequential_;
  std::vector<History*> unsettled_;
  uint32_t blocks_ = 0;
};

}  // namespace tokenyard::simulation
