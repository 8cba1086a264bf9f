/// The real engine and its algorithms in a simulated process: channels over the virtual network,
/// which cuts messages into pieces and has room for few bytes at a time.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/engine/engine.hpp"
#include "collectives/membership/invariant.hpp"
#include "collectives/simulated/program.hpp"

namespace tokenyard::collectives::simulated {

/// Which channel of a pair, in which epoch.
struct Line {
  Epoch epoch = 0;
  GroupId group = 0;
  Lane lane = Lane::collective;
  auto operator<=>(const Line&) const = default;
};

/// Bytes on their way; or, if there are none, the news that some have been read.
struct Parcel {
  Line line;
  std::vector<std::byte> bytes = {};
  size_t read = 0;
};

class SimulatedTransport final : public Transport {
 public:
  using Post = std::function<void(Slot to, Parcel parcel)>;
  static constexpr size_t kWindow = 600;  ///< bytes under way; small, so that senders must wait

  explicit SimulatedTransport(Post post) : post_(std::move(post)) {}

  void arrive(Slot from, Parcel parcel) {
    if (parcel.line.epoch < epoch_) return;
    Pipe& pipe = pipes_[{parcel.line, from}];
    pipe.inbox.insert(pipe.inbox.end(), parcel.bytes.begin(), parcel.bytes.end());
    pipe.under_way -= parcel.read;
  }

  Contact contact() const override { return {}; }
  void begin_epoch(const View& view, const Contacts&) override {
    epoch_ = view.epoch;
    pipes_.erase(pipes_.begin(), pipes_.lower_bound({Line{.epoch = epoch_}, 0}));
  }
  std::shared_ptr<Channel> channel(GroupId group, Lane lane, Slot peer) override {
    return std::make_shared<PipeChannel>(*this, Line{epoch_, group, lane}, peer);
  }
  bool same_host(Slot) const override { return true; }
  void poll() override {}
  void prepare_to_sleep() override {}
  void sleep(std::chrono::nanoseconds) override {}
  void wake() override {}

 private:
  struct Pipe {
    std::vector<std::byte> inbox;
    size_t under_way = 0;
    uint64_t sent = 0;
  };

  class PipeChannel final : public Channel {
   public:
    PipeChannel(SimulatedTransport& transport, Line line, Slot peer)
        : transport_(transport), line_(line), peer_(peer) {}

    size_t send_some(std::span<const std::byte> bytes) override {
      if (line_.epoch != transport_.epoch_) return 0;
      Pipe& pipe = transport_.pipes_[{line_, peer_}];
      const size_t taken = std::min(bytes.size(), kWindow - pipe.under_way);
      if (taken == 0) return 0;
      transport_.post_(peer_,
                       {line_, {bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(taken)}});
      pipe.under_way += taken;
      pipe.sent += taken;
      return taken;
    }
    size_t receive_some(std::span<std::byte> into) override {
      const std::span<const std::byte> piece = arrived(into.size());
      std::copy(piece.begin(), piece.end(), into.begin());
      consume(piece.size());
      return piece.size();
    }
    std::span<const std::byte> arrived(size_t wanted) override {
      if (line_.epoch != transport_.epoch_) return {};
      const std::vector<std::byte>& inbox = transport_.pipes_[{line_, peer_}].inbox;
      return std::span(inbox).first(std::min(wanted, inbox.size()));
    }
    void consume(size_t bytes) override {
      if (bytes == 0 || line_.epoch != transport_.epoch_) return;
      std::vector<std::byte>& inbox = transport_.pipes_[{line_, peer_}].inbox;
      inbox.erase(inbox.begin(), inbox.begin() + static_cast<ptrdiff_t>(bytes));
      transport_.post_(peer_, {.line = line_, .read = bytes});
    }
    uint64_t bytes_sent() const override {
      const auto found = transport_.pipes_.find({line_, peer_});
      return found == transport_.pipes_.end() ? 0 : found->second.sent;
    }

   private:
    SimulatedTransport& transport_;
    const Line line_;
    const Slot peer_;
  };

  const Post post_;
  Epoch epoch_ = 0;
  std::map<std::pair<Line, Slot>, Pipe> pipes_;
};

class EngineProgram final : public Program {
 public:
  struct Options {
    Sequence target = 0;
    uint32_t ranks = 0;  ///< in the beginning; the engine's world grows by itself
    OnFailure on_failure = OnFailure::exclude;
  };
  struct Outside {
    SimulatedTransport::Post post;
    Engine::Clock clock;
    std::function<void(Slot, Suspicion, Epoch)> suspect;
    std::function<void(const std::vector<Slot>&)> admit;
    std::function<void(GroupId)> failed;  ///< the program tries again soon
    std::function<void()> drive_soon;
    std::function<void(Instant)> drive_at;
  };

  EngineProgram(Member self, Options options, Watcher watcher, Outside outside)
      : self_(self),
        options_(options),
        watcher_(std::move(watcher)),
        outside_(std::move(outside)),
        transport_(std::make_shared<SimulatedTransport>(outside_.post)),
        engine_(transport_,
                {.self = self.slot, .on_failure = options.on_failure, .chunk_bytes = 256},
                outside_.clock),
        control_(outside_) {
    engine_.use(control_);
  }

  void arrive(Slot from, Parcel parcel) {
    transport_->arrive(from, std::move(parcel));
    drive();
  }
  /// Until nothing moves.
  void drive() {
    for (int round = 0; engine_.poll(true); ++round)
      invariant(round < 100'000, "the engine is busy without end");
    settle();
    const std::optional<Instant> next = engine_.next_deadline();
    if (next && next != planned_) outside_.drive_at(*next);
    planned_ = next;
  }

  void add_group(GroupId id, std::vector<Slot> slots) override {
    if (id == 0 && view_.epoch == 0 && channels_of_.epoch == 0) slots.resize(options_.ranks);
    const auto place = std::find(slots.begin(), slots.end(), self_.slot);
    if (place == slots.end() || groups_.contains(id)) return;
    engine_.add_group({.id = id,
                       .name = std::to_string(id),
                       .slots = slots,
                       .self = static_cast<uint32_t>(place - slots.begin())});
    groups_[id].slots = std::move(slots);
  }

  bool begin(GroupId id) override {
    Group& group = groups_.at(id);
    if (view_.epoch == 0 || group.operation || group.committed >= options_.target || over_ ||
        engine_.frozen())
      return false;
    if (options_.on_failure == OnFailure::raise) engine_.repair();
    const Sequence sequence = group.begun = group.committed + 1;
    // Sizes and ways to move them change from call to call, alike on all ranks.
    const uint64_t drawn = (id * 31 + sequence) * 0x9e3779b97f4a7c15u >> 40;
    group.data.assign(std::array{1, 7, 64, 300}[drawn % 4], contribution(self_, id, sequence));
    const Algorithm algorithm =
        std::array{Algorithm::automatic, Algorithm::ring, Algorithm::doubling}[drawn / 4 % 3];
    const Array array{group.data.data(), group.data.size(), DataType::int64};
    group.operation = engine_.start(id,
                                    {.signature = {.kind = OperationKind::all_reduce,
                                                   .type = array.type,
                                                   .op = ReduceOp::sum,
                                                   .algorithm = algorithm,
                                                   .elements = array.elements},
                                     .out = {array},
                                     .bytes = array.bytes()},
                                    std::chrono::hours(1));
    drive();
    return true;
  }
  std::vector<Slot> waiting_for(GroupId, Sequence) const override { return {}; }

  // ---- Participant ------------------------------------------------------------------------------

  std::vector<GroupProgress> freeze(Epoch epoch) override { return engine_.freeze(epoch); }
  void install(const Verdict& verdict, const Contacts& contacts) override {
    const bool newcomer = view_.epoch == 0;
    channels_of_ = verdict.next;
    engine_.install(verdict, contacts);
    if (newcomer) {
      add_group(0, world_of(verdict.next));
      for (const GroupProgress& told : verdict.groups) {
        std::vector<Slot> slots = told.slots;
        add_group(told.group, std::move(slots));
        if (groups_.contains(told.group)) groups_[told.group].committed = told.committed;
      }
    }
    for (const GroupProgress& told : verdict.groups) {
      const auto found = groups_.find(told.group);
      if (found != groups_.end()) settle(found->first, found->second, told.committed);
    }
    view_ = verdict.next;
    groups_.at(0).slots = world_of(view_);
    outside_.drive_soon();
  }
  void fenced(Epoch epoch, const std::string& why) override {
    over_ = true;
    engine_.fenced(epoch, why);
  }
  void quorum_missing(const std::vector<Slot>& answering, uint32_t needed) override {
    engine_.quorum_missing(answering, needed);
  }

  std::vector<GroupProgress> progress() const override {
    std::vector<GroupProgress> list;
    for (const auto& [id, group] : groups_)
      list.push_back({id, group.slots, group.committed, group.begun});
    return list;
  }
  Sequence begun(GroupId id) const override { return groups_.at(id).begun; }
  bool running(GroupId id) const override { return groups_.at(id).operation != nullptr; }
  const View& view() const override { return view_; }
  /// Whom its channels lead to.
  const View& channels_of() const { return channels_of_; }
  bool frozen() const override { return engine_.frozen(); }
  bool misses_quorum() const override { return engine_.missing_quorum().has_value(); }

 private:
  struct Group {
    std::vector<Slot> slots;
    Sequence committed = 0, begun = 0;
    std::vector<int64_t> data;
    std::shared_ptr<Operation> operation;
  };
  struct Control final : MembershipControl {
    explicit Control(const Outside& outside) : outside(outside) {}
    void suspect(Slot slot, Suspicion why, Epoch seen_in) override {
      outside.suspect(slot, why, seen_in);
    }
    void admit(const std::vector<Slot>& slots) override { outside.admit(slots); }
    void leave() override {}
    const Outside& outside;
  };

  static std::vector<Slot> world_of(const View& view) {
    std::vector<Slot> slots(view.slots);
    std::iota(slots.begin(), slots.end(), 0);
    return slots;
  }

  void settle() {
    for (auto& [id, group] : groups_) settle(id, group, ~Sequence{0});
  }
  /// Tells the watcher of an operation up to `most` that has ended.
  void settle(GroupId id, Group& group, Sequence most) {
    if (!group.operation || !group.operation->done()) return;
    const std::exception_ptr error = group.operation->error();
    if (!error && group.begun > most) return;  // Done in the epoch that begins.
    group.operation.reset();
    const int64_t sum = group.data.front();
    const bool even = std::all_of(group.data.begin(), group.data.end(),
                                  [&](int64_t value) { return value == sum; });
    invariant(even, "elements of a result differ");
    if (error) {
      if (over_) return;
      watcher_.aborted(id, group.begun, sum);
      outside_.failed(id);
      return;
    }
    group.committed = group.begun;
    std::vector<Slot> active;
    for (const Slot slot : group.slots) {
      if (view_.at(slot)) active.push_back(slot);
    }
    watcher_.committed(id, group.begun, view_, active, sum);
  }

  const Member self_;
  const Options options_;
  const Watcher watcher_;
  const Outside outside_;
  const std::shared_ptr<SimulatedTransport> transport_;
  std::map<GroupId, Group> groups_;  // whose memory the engine uses
  Engine engine_;
  Control control_;
  View view_, channels_of_;
  bool over_ = false;
  std::optional<Instant> planned_;  ///< when the engine wants to look at the clock
};

}  // namespace tokenyard::collectives::simulated
