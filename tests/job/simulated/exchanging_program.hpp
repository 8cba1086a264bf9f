/// A rank of a simulated job that exchanges tokens: the real membership, exchange of messages,
/// ranks, worlds and exchanges, and between them the work that `control` does in a real process.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/simulated/job.hpp"
#include "fabric/gather.hpp"
#include "job/process_ranks.hpp"
#include "job/simulated/computation.hpp"
#include "job/simulated/exchange_calls.hpp"
#include "job/simulated/simulated_fabric.hpp"
#include "job/simulated/world_checkers.hpp"
#include "simulation/simulated_accelerator.hpp"
#include "world/parts.hpp"

namespace tokenyard::job_test {

using collectives::simulated::Job;
using collectives::simulated::Process;
using collectives::simulated::Program;
using membership::GroupId;
using membership::GroupProgress;
using membership::Sequence;
using membership::Verdict;

/// Deliberate bugs, which the checkers must notice.
enum class Mutant : uint8_t {
  none,
  arena_reused,       ///< a new world lies in the memory of the one before
  goes_on_from_last,  ///< the calls of a new world begin behind the last that anybody finished
  own_count_trusted,  ///< they begin behind the last that this rank finished
  losses_not_told,    ///< nobody hears that a connection has ended
  verdicts_not_told,  ///< ranks do not hear of the members' agreements
  rows_of_before,     ///< a rank sends rows of another world
};

/// Things that the processes of a job share.
struct Shared {
  Shared(simulation::SeedRun& run, Schedule& schedule, uint32_t ranks, Instant turn,
         const Shapes& shapes, Mutant mutant)
      : run(run),
        computation(run, schedule, ranks, turn),
        fabric(std::make_shared<SimulatedFabric>(computation, mutant == Mutant::arena_reused)),
        shapes(shapes),
        mutant(mutant) {}

  simulation::SeedRun& run;
  Computation computation;
  const std::shared_ptr<SimulatedFabric> fabric;
  const Shapes shapes;
  const Mutant mutant;
  uint32_t calls = 3;         ///< of each rank, in all
  bool looks_around = false;  ///< ranks agree before each call whether they go on in this world
  bool rebuilds = false;      ///< survivors go on by World::rebuild, which renumbers them
  WorldMutant world_mutant = WorldMutant::none;
  size_t strikes_at_world = 0;   ///< number of the world at which a rank dies in the last wait
  uint32_t strikes_at_call = 0;  ///< number of the call, of all ranks, in which a rank is hit
  uint32_t calls_begun = 0;
  Instant told_most{};  ///< until a program hears of an agreement
  Instant timeout{};    ///< of a world
  bool over = false;    ///< all programs end
  std::string wrong;    ///< first complaint of a checker on a program's fiber
  WorldChecker worlds;
  CallChecker counts;
  FenceChecker fences;
};

class ExchangingProgram final : public Program,
                                private control::RankLinks,
                                private control::RankControl {
 public:
  ExchangingProgram(Shared& shared, Job& job, Process& process)
      : shared_(shared),
        job_(job),
        process_(process),
        ranks_(std::make_shared<ProcessRanks>(process.self.slot, job.options.ranks)),
        exchange_(*this, *ranks_) {
    ranks_->use(*this);
    host_ = simulation().add_program(process.id, "host", [this](ModelMemory::Host host) {
      host_ = host;
      live();
    });
  }

  /// Leaks the world of a program that has not ended: only its fiber could end it.
  ~ExchangingProgram() override { static_cast<void>(world_.release()); }

  // ---- what happens to the process
  // ------------------------------------------------------------------

  void died() override {
    touched_ = true;
    constexpr simulation::InFlight kFates[] = {
        simulation::InFlight::land, simulation::InFlight::vanish, simulation::InFlight::tear};
    simulation().kill(process_.id, kFates[job_.random.below(3)]);
    if (calling_) shared_.run.reach("a rank dies in a call");
    if (making_) shared_.run.reach("a rank dies while a world is made");
  }
  void stopped() override {
    touched_ = true;
    simulation().stop(process_.id);
    if (calling_) shared_.run.reach("a rank stops in a call");
  }
  void woke() override {
    if (!job_.newest().contains(process_.self)) shared_.run.reach("a rank wakes that is out");
    simulation().resume(process_.id);
  }
  void link_ended(const Member& gone) override {
    if (shared_.mutant == Mutant::losses_not_told) return;
    ended_.insert(gone);
    exchange_.ended(gone);
    happened();
  }
  void part(std::function<void()> leave) override {
    leave_ = std::move(leave);
    happened();
  }

  // ---- Participant
  // ----------------------------------------------------------------------------------

  std::vector<GroupProgress> freeze(Epoch) override { return {}; }
  void install(const Verdict& verdict, const control::Contacts&) override {
    const View before = std::exchange(view_, verdict.next);
    exchange_.install(view_);
    part_from_former_members(before, verdict);
    if (shared_.mutant == Mutant::verdicts_not_told && before.epoch != 0) return;
    soon([this, verdict] { ranks_->install(verdict); });
  }
  void fenced(Epoch, const std::string& why) override {
    const bool left = why == "left";
    if (!left) {
      exchange_.evict();
      shared_.run.reach("a rank is fenced");
    }
    for (const auto& other : job_.processes)
      if (other->self != process_.self) end_link_of(*other);
    if (left) return;
    soon([this] {
      is_out_ = true;
      shared_.fences.told(process_.self);
    });
  }
  void quorum_missing(const std::vector<Slot>& answering, uint32_t needed) override {
    soon([this, answering, needed] { ranks_->quorum_missing(answering, needed); });
  }

  // ---- Program
  // ------------------------------------------------------------------------------

  void add_group(GroupId, std::vector<Slot>) override {}
  bool begin(GroupId) override { return false; }
  std::vector<Slot> waiting_for(GroupId, Sequence) const override { return {}; }
  std::vector<GroupProgress> progress() const override { return {}; }
  Sequence begun(GroupId) const override { return 0; }
  bool running(GroupId) const override { return false; }
  const View& view() const override { return view_; }
  bool frozen() const override { return false; }
  bool misses_quorum() const override { return false; }
  std::string unfinished() const override {
    if (!shared_.wrong.empty()) throw collectives::simulated::Broken(shared_.wrong);
    if (leave_ || is_at_rest_) return "";
    return fmt::format("has finished {} of {} calls; {}{}{}", finished_, shared_.calls, doing_,
                       last_error_.empty() ? "" : ", after ", last_error_);
  }
  bool untouched() const { return !touched_ && !leave_ && !is_out_; }
  const Member& self() const { return process_.self; }

 private:
  Simulation& simulation() { return shared_.computation.simulation(); }
  void happened() { shared_.computation.happened(); }
  ExchangingProgram& program_of(Process& process) {
    return static_cast<ExchangingProgram&>(*process.engine);
  }
  /// Has the control thread do this.
  void post(std::function<void()> action) {
    job_.schedule.at(job_.schedule.now(),
                     [this, action = std::move(action)] { process_.input(action); });
  }
  /// Has the participant's thread do this, behind what it has been asked before.
  void soon(std::function<void()> action) {
    participant_busy_ =
        std::max(participant_busy_, job_.schedule.now() + job_.some(shared_.told_most));
    job_.schedule.at(participant_busy_, [this, action = std::move(action)] {
      process_.input([this, action] {
        action();
        happened();
      });
    });
  }

  // ---- the control plane's part
  // ---------------------------------------------------------------------------

  bool contains(const Member& peer) const override {
    return job_.of(peer) != nullptr && !ended_.contains(peer);
  }
  void send_in_parts(const Member& peer, control::Bytes message) override {
    // Two parts at times, as of a large message.
    const size_t first = job_.random.chance(100) ? message->size() / 2 : 0;
    const auto begin = message->begin();
    if (first > 0)
      deliver(peer, control::Topic::part, {begin, begin + static_cast<ptrdiff_t>(first)});
    deliver(peer, control::Topic::last, {begin + static_cast<ptrdiff_t>(first), message->end()});
  }
  void say_goodbye(const Member& peer) override { deliver(peer, control::Topic::goodbye, {}); }
  void deliver(const Member& peer, control::Topic topic, std::vector<std::byte> bytes) {
    Process* const to = job_.of(peer);
    if (to == nullptr || to == &process_ || ended_.contains(peer)) return;
    job_.network.send(
        process_.id, to->id, collectives::simulated::kControl,
        [this, to, topic, bytes = std::move(bytes), order = order_, from = process_.self] {
          to->input([=, this] { program_of(*to).arrived(from, topic, bytes, order); });
        });
  }
  void arrived(const Member& from, control::Topic topic, const std::vector<std::byte>& bytes,
               const simulation::ReleaseRef& order) {
    if (order) simulation().memory().acquire(host_, order);
    exchange_.received(from, topic, bytes);
    happened();
  }
  void end_link_of(Process& other) {
    job_.network.send(process_.id, other.id, collectives::simulated::kControl,
                      [this, &other, from = process_.self] {
                        other.input([this, &other, from] { program_of(other).link_ended(from); });
                      });
  }
  /// As ControlLoop does: one that is out may be stopped, one that has left hangs up itself.
  void part_from_former_members(const View& before, const Verdict& verdict) {
    for (const Member& peer : before.members) {
      if (view_.contains(peer) || peer == process_.self) continue;
      if (std::ranges::count(verdict.left, peer.slot) == 0) {
        end_link_of(*job_.of(peer));
        link_ended(peer);
      } else {
        job_.schedule.at(job_.schedule.now() + std::chrono::milliseconds(600),
                         [this, peer] { process_.input([this, peer] { link_ended(peer); }); });
      }
    }
  }

  void send(Slot to, control::Bytes message) override {
    post([this, to, message = std::move(message), order = simulation().memory().release(host_)] {
      order_ = order;
      exchange_.send(to, message);
      order_.reset();
    });
  }
  void abandon(const Member& member, Epoch seen_in) override {
    post([this, member, seen_in] {
      membership::Membership& runtime = process_.runtime;
      if (!runtime.view().contains(member) || runtime.view().epoch != seen_in) return;
      runtime.suspect(member.slot, membership::Suspicion::silence, seen_in, process_.now());
      runtime.evict(member, process_.now());
    });
  }
  bool is_linked_to_all() const override { return true; }

  // ---- the rank's program, on a fiber of its own
  // --------------------------------------------------------------------

  void live() {
    shared_.computation.wait([this] { return ranks_->epoch() != 0; });
    accelerator_ =
        std::make_shared<simulation::SimulatedAccelerator>(simulation(), process_.id, host_);
    while (!ends()) {
      bool is_left_out = false;
      try {
        live_in_a_world();
        last_error_.clear();
      } catch (const collectives::simulated::Broken& broken) {
        shared_.wrong = broken.what();
        return;
      } catch (const PeerLost& error) {
        last_error_ = error.what();
      } catch (const PeerTimeout& error) {
        touched_ = true;  // From now on it may lack what others have.
        last_error_ = error.what();
      } catch (const OutOfTouch& error) {
        is_left_out = shared_.rebuilds;  // Nothing more waits for it, until it learns that.
        last_error_ = error.what();
      } catch (const QuorumLost& error) {
        last_error_ = error.what();
      } catch (const tokenyard::Fenced& error) {
        last_error_ = error.what();
      } catch (const std::exception& error) {
        shared_.wrong =
            fmt::format("errors: slot {} got another one: {}", process_.self.slot, error.what());
        return;
      }
      making_ = calling_ = is_at_rest_ = false;
      if (is_left_out) shared_.computation.wait([this] { return ends(); });
    }
    world_.reset();
    accelerator_->drain();
    if (!leave_ || is_out_) return;
    post([this] {
      exchange_.say_goodbye();
      leave_();
    });
  }
  bool ends() const { return is_out_ || leave_ || shared_.over; }

  /// Where a member is, as it tells the others.
  struct Standing {
    uint64_t has_counted = 0, finished = 0, goes = 0;
  };

  void live_in_a_world() {
    doing_ = "makes a world";
    making_ = true;
    if (!next_world()) return;
    World* const world = world_.get();
    making_ = false;
    const WorldAccess::Impl& impl = WorldAccess::impl(*world);
    const uint32_t generation = impl.bootstrap->generation();
    epoch_ = impl.epoch;
    if (shared_.worlds.made(process_.self, generation, slots_of(*world),
                            job_.agreement.views().at(epoch_), job_.newest()))
      strike_at_a_world();
    begin_from(*world, generation);
    const auto calls = calls_on(*world, shared_.shapes, generation);
    while (finished_ < shared_.calls) {
      think();
      if (ends() || !goes_on(*world, *calls) || ends()) return;
      doing_ = "makes a call";
      // A world or a call for which all others have come may still end well.
      shared_.fences.does(process_.self, "begins a call");
      calling_ = true;
      strike_in_a_call();
      calls->make(finished_);
      calling_ = false;
      shared_.counts.finished(process_.self, finished_++);
      if (calls->misses_one()) shared_.run.reach("low latency goes on without a rank");
      if (job_.parting.erase(process_.self) > 0)
        job_.schedule.at(job_.schedule.now(), [this] { job_.leave(process_); });
    }
    doing_ = "rests";
    is_at_rest_ = true;
    shared_.computation.wait(
        [&] { return ends() || has_changed(*world) || is_left_by_another(*world); });
    is_at_rest_ = false;
  }

  /// Returns a rank without which the others can go on, or null.
  Process* victim() {
    const membership::Quorum quorum(job_.newest(), job_.options.membership.witness,
                                    membership::Mutant::none);
    const std::vector<Process*> survivors = job_.survivors();
    if (job_.calm || survivors.size() + (quorum.witness ? 1 : 0) <= quorum.needed) return nullptr;
    return survivors[job_.random.below(static_cast<uint32_t>(survivors.size()))];
  }
  /// While others still wait for the world that this rank has, one of them dies: its last message
  /// has come here, and perhaps not there.
  void strike_at_a_world() {
    if (shared_.worlds.worlds() != shared_.strikes_at_world) return;
    Process* const dies = victim();
    if (dies == nullptr || dies == &process_) return;
    job_.schedule.at(job_.schedule.now(), [this, dies] {
      if (dies->alive()) job_.kill(*dies);
    });
  }
  /// Some time after the begin of a call, a rank dies or stops between two steps of kernels.
  void strike_in_a_call() {
    if (++shared_.calls_begun != shared_.strikes_at_call) return;
    shared_.computation.after_turns(uint64_t{1} << job_.random.between(4, 15), [this] {
      Process* const hit = victim();
      if (hit == nullptr) return;
      if (job_.random.chance(600)) return job_.kill(*hit);
      job_.stop(*hit);
      job_.schedule.at(job_.schedule.now() + job_.some(job_.options.membership.silence * 3),
                       [this, hit] { job_.wake(*hit); });
    });
  }

  /// Returns false if the program ends.
  bool next_world() {
    if (!world_ || !shared_.rebuilds) {
      world_.reset();
      world_ = join_members({.job = nullptr,
                             .ranks = ranks_,
                             .check_ended = [this] { check_ended(); },
                             .mutant = shared_.world_mutant},
                            {.accelerator = accelerator_, .fabric = shared_.fabric},
                            world_options(), nullptr);
      return true;
    }
    // It knows that the world has failed before it knows which rank has gone, if that is itself.
    shared_.computation.wait([&] { return ends() || !world_->lost().empty(); });
    if (ends()) return false;
    world_ = world_->rebuild(world_->lost());
    shared_.run.reach("survivors rebuild a world");
    return true;
  }
  /// Returns whether another rank asks for a later world.
  bool is_left_by_another(const World& world) const {
    const auto is_ahead = [&](Slot slot) {
      const auto asked = ranks_->mailbox().latest_rebuild(slot);
      return asked && asked->generation > WorldAccess::impl(world).bootstrap->generation();
    };
    return std::ranges::any_of(slots_of(world), is_ahead);
  }
  static std::vector<Slot> slots_of(const World& world) {
    std::vector<Slot> slots = WorldAccess::impl(world).bootstrap->membership().slots;
    std::erase(slots, kAbsent);
    return slots;
  }

  WorldOptions world_options() const {
    WorldOptions options;
    options.timeout = shared_.timeout;
    options.arena_bytes = kArenaBytes;
    return options;
  }
  void check_ended() const {
    if (is_out_) throw tokenyard::Fenced(view_.epoch, "the others go on without it");
  }

  /// The members go on from the call that all of them have finished.
  void begin_from(World& world, uint32_t generation) {
    doing_ = "asks where the others are";
    const auto all = gather(
        world, Standing{.has_counted = counts_, .finished = finished_, .goes = 0}, "standing");
    std::vector<uint32_t> counts;
    for (const uint32_t rank : present_ranks(world))
      if (all[rank].has_counted != 0) counts.push_back(static_cast<uint32_t>(all[rank].finished));
    uint32_t from = counts.empty() ? 0 : std::ranges::min(counts);
    if (shared_.mutant == Mutant::goes_on_from_last && !counts.empty())
      from = std::ranges::max(counts);
    if (shared_.mutant == Mutant::own_count_trusted && counts_) from = finished_;
    shared_.counts.goes_on(process_.self, generation, members_of_epoch(), from, counts);
    if (counts_ && from < finished_) shared_.run.reach("a rank makes a finished call again");
    if (!counts_ && from > 0) shared_.run.reach("a newcomer takes part in a later call");
    finished_ = from;
    counts_ = true;
  }

  bool has_changed(const World& world) const {
    return !world.lost().empty() || ranks_->view().members != members_of_epoch();
  }
  const std::vector<Member>& members_of_epoch() const {
    return job_.agreement.views().at(epoch_).members;
  }

  /// Returns whether the members make another call in this world: alike on all of them, if they
  /// tell one another.
  bool goes_on(World& world, const ExchangeCalls& calls) {
    const bool stays = !has_changed(world) && !calls.misses_one();
    if (!shared_.looks_around) return world.lost().empty();
    doing_ = "asks whether the others go on";
    for (const Standing& standing :
         gather(world, Standing{.has_counted = 1, .finished = finished_, .goes = stays}, "goes on"))
      if (standing.has_counted != 0 && standing.goes == 0) return false;
    return true;
  }

  void think() {
    doing_ = "thinks";
    const Instant until =
        std::max(job_.schedule.now() + job_.some(job_.think_most), process_.stuck_until);
    shared_.computation.wake_at(until);
    shared_.computation.wait(
        [&] { return job_.schedule.now() >= std::max(until, process_.stuck_until) || ends(); });
  }

  static constexpr size_t kArenaBytes = size_t{1} << 17;

  Shared& shared_;
  Job& job_;
  Process& process_;
  const std::shared_ptr<ProcessRanks> ranks_;
  control::Exchange exchange_;
  ModelMemory::Host host_ = 0;
  std::shared_ptr<simulation::SimulatedAccelerator> accelerator_;
  std::unique_ptr<World> world_;  ///< the last one
  View view_;                     ///< of the control plane
  std::set<Member> ended_;        ///< processes whose links have ended
  simulation::ReleaseRef order_;
  Instant participant_busy_{};
  std::function<void()> leave_;
  bool is_out_ = false, touched_ = false;
  Epoch epoch_ = 0;  ///< of the world
  bool making_ = false, calling_ = false, is_at_rest_ = false, counts_ = false;
  uint32_t finished_ = 0;
  const char* doing_ = "begins";
  std::string last_error_;
};

}  // namespace tokenyard::job_test
