/// Memory as a GPU may behave at its worst, by seed: the PTX memory model as a machine.
///
/// Strong accesses choose among the stores of their place (history.hpp). Weak stores and bulk
/// copies reach memory late (late_stores.hpp, bulk_agent.hpp). Ordinary C++ accesses act on real
/// memory; the compiler's instrumentation reports them. Every access is checked against
/// happens-before clocks of our own (race_detector.hpp), not by the sanitizer's library: these
/// know scopes and the async proxy, are the same with every compiler and from run to run, and
/// carry tens of thousands of fibers.
///
/// What is ordered needs no luck to be found: a missing release, acquire, barrier, proxy fence or
/// too narrow a scope is a race whatever the timing. Late stores show what it does to data.
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
    Mutator* mutator = nullptr;  ///< none: the kernels as written
  };
  explicit ModelMemory(const Options& options);
  ~ModelMemory() override;

  // What the run consists of.
  void add_region(std::string name, void* base, size_t bytes, uint32_t rank);
  void remove_region(void* base);

  /// Host code as memory sees it: one for each thread of host code (a rank's program, a stream).
  using Host = uint32_t;
  Host add_host(uint32_t rank, std::string label);
  /// Everything `from` has done so far happens before whatever the acquirer of the result does.
  ReleaseRef release(Host from) { return hosts_[from]->release(Scope::sys); }
  void acquire(Host to, const ReleaseRef& ticket) { join(*hosts_[to], *ticket); }
  /// Something happened among hosts that somebody may wait for.
  void happened() { ++progress_; }
  /// The next grid of that rank is launched by this host, and ends there.
  void launch_from(Host host);
  uint32_t read_flag(Host host, const uint32_t* flag);
  void write_flag(Host host, uint32_t* flag, uint32_t value);
  /// An ordinary access of host code.
  void host_access(Host host, const void* address, size_t bytes, bool write, CodeAddress where);

  /// The rank does nothing any more; what it had under way lands, vanishes or tears.
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

  bool step() override { return step(false); }
  bool step_when_idle() override { return step(true); }
  uint64_t progress() const override { return progress_; }

 private:
  struct Grid {
    uint32_t rank, number;
    Host launcher;
    std::vector<std::unique_ptr<ThreadState>> threads;
    std::vector<StoreGroups> stores;  ///< of each thread
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
  /// fence.sc of one place: those that include one another are ordered as they come.
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

  // The words, once the thread's state is known.
  /// The message that it found.
  const Message& strong_load(ThreadState& me, Region& region, const void* from, void* value,
                             uint32_t bytes, Order order, Scope scope, CodeAddress where);
  void strong_store(ThreadState& me, Region& region, void* to, const void* value, uint32_t bytes,
                    Order order, Scope scope, CodeAddress where);
  /// `update(old)` gives the new value, or false to leave the old one.
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
