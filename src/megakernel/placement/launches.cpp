#include "megakernel/placement/launches.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {

namespace {

/// Tasks of one event, per scheduler, above which all schedulers share the launch.
constexpr uint32_t kMassive = 8;

void check_dynamic_signals(const Graph& graph) {
  for (uint32_t task = 0; task < graph.tasks().size(); ++task)
    for (const Signal& signal : graph.tasks()[task].signals)
      if (signal.dynamic && signal.rank != graph.place().rank)
        throw InvalidGraph(
            GraphFault::trigger_count,
            {task_name(graph, task),
             fmt::format("signals a dynamic event of rank {}", signal.rank)},
            "a static placement for dynamic events that tasks of other ranks signal");
}

}  // namespace

/// Builds the plan of one rank.
class LaunchPlan {
 public:
  LaunchPlan(std::span<const Graph> graphs, uint32_t rank, const Triggers& triggers,
             const GraphOrder& order, uint32_t schedulers)
      : graphs_(graphs),
        graph_(graphs[rank]),
        rank_(rank),
        triggers_(triggers[rank]),
        order_(order),
        schedulers_(schedulers),
        events_(static_cast<uint32_t>(graph_.events().size())),
        tasks_(static_cast<uint32_t>(graph_.tasks().size())),
        of_event_(events_ + 1) {}

  Launches::OfRank make() {
    collect_dependents();
    count_ends();
    find_followers();
    choose_schedulers();
    order_tasks();
    write_watches();
    return std::move(plan_);
  }
  /// Returns the most events that one scheduler watches.
  uint32_t most_watched() const { return most_watched_; }

 private:
  static constexpr uint32_t kNobody = Launches::kNobody;

  /// Collects the tasks per event; the last entry is for the iteration's begin. Workers look at
  /// events of the previous iteration themselves: these are complete, or will be whatever happens
  /// here, so no scheduler watches them.
  void collect_dependents() {
    for (uint32_t task = 0; task < tasks_; ++task) {
      const Graph::TaskNode& node = graph_.tasks()[task];
      Dependent dependent{
          .position = task, .waits = 0, .worker = node.worker.value_or(kAnyWorker), .place = {}};
      for (const Wait& wait : node.waits) dependent.waits += wait.lag == 0;
      for (const Wait& wait : node.waits)
        if (wait.lag == 0) of_event_[wait.event.id].push_back(dependent);
      if (dependent.waits == 0) of_event_[events_].push_back(dependent);
      plan_.pins = plan_.pins || node.worker.has_value();
    }
  }

  void count_ends() {
    for (const Graph::TaskNode& node : graph_.tasks()) {
      const bool leads_on = node.signals.size() == 1 && node.expects.empty() &&
                            !node.signals[0].dynamic && node.signals[0].rank == rank_ &&
                            !of_event_[node.signals[0].event.id].empty();
      plan_.counted.push_back(!leads_on);
    }
  }

  /// Gives each task at most one follower: the task behind its first signal whose event has no
  /// other signaller and no other reader.
  void find_followers() {
    std::vector<uint32_t> users(events_, 0);  ///< signallers of any rank and late readers
    for (const Graph& graph : graphs_)
      for (const Graph::TaskNode& task : graph.tasks())
        for (const Signal& signal : task.signals) users[signal.event.id] += signal.rank == rank_;
    for (const Graph::TaskNode& task : graph_.tasks())
      for (const Wait& wait : task.waits) users[wait.event.id] += wait.lag > 0;
    if (graph_.loop()) ++users[graph_.loop()->id];
    plan_.followed.assign(tasks_, kNobody);
    plan_.follower_of.assign(events_, kNobody);
    for (uint32_t task = 0; task < tasks_; ++task) {
      const std::vector<Signal>& signals = graph_.tasks()[task].signals;
      for (uint32_t i = 0; i < signals.size() && plan_.followed[task] == kNobody; ++i) {
        const uint32_t event = signals[i].event.id;
        const std::vector<Dependent>& after = of_event_[event];
        // (A signal of another rank, or of a task's body, makes the event `sys`.)
        if (signals[i].rank != rank_ || signals[i].dynamic || users[event] != 1 ||
            triggers_[event].sys || after.size() != 1 || after[0].waits != 1 ||
            after[0].worker != kAnyWorker)
          continue;
        plan_.followed[task] = i;
        plan_.follower_of[event] = after[0].position;
      }
    }
  }

  void choose_schedulers() {
    for (uint32_t event = 0; event < events_; ++event) {
      const size_t count = of_event_[event].size();
      Launch launch = Launch::nobody;
      if (plan_.follower_of[event] != kNobody)
        launch = Launch::follower;
      else if (count > kMassive * schedulers_)
        launch = Launch::every;
      else if (count > 0)  // The last scheduler serves events that other ranks signal.
        launch =
            static_cast<Launch>(triggers_[event].remote ? schedulers_ - 1 : event % schedulers_);
      plan_.launch.push_back(launch);
    }
  }
  bool watches(uint32_t scheduler, uint32_t event) const {
    return plan_.launch[event] == Launch::every ||
           plan_.launch[event] == static_cast<Launch>(scheduler);
  }

  /// Orders tasks topologically: the order of a run whose tasks all take equally long.
  void order_tasks() {
    std::vector<bool> queued(tasks_);
    for (uint32_t task = 0; task < tasks_; ++task)
      queued[task] = !graph_.tasks()[task].worker.has_value();
    for (const uint32_t task : plan_.follower_of)
      if (task != kNobody) queued[task] = false;
    place_of_event_.assign(events_, 0);
    std::vector<uint32_t> others;
    uint32_t at = 0;
    for (const GraphOrder::Node node : order_.sorted()) {
      ++at;
      if (node >= order_.task(rank_, 0) && node < order_.task(rank_, tasks_)) {
        const uint32_t task = node - order_.task(rank_, 0);
        (queued[task] ? plan_.order : others).push_back(task);
      }
      if (node >= order_.event(rank_, 0) && node < order_.event(rank_, events_))
        place_of_event_[node - order_.event(rank_, 0)] = at;
    }
    plan_.queued = static_cast<uint32_t>(plan_.order.size());
    plan_.order.insert(plan_.order.end(), others.begin(), others.end());
    std::vector<uint32_t> place(tasks_);
    for (uint32_t i = 0; i < tasks_; ++i) place[plan_.order[i]] = i;
    for (std::vector<Dependent>& after : of_event_)
      std::sort(after.begin(), after.end(), [&](const Dependent& a, const Dependent& b) {
        return place[a.position] < place[b.position];
      });
  }

  /// Returns, [events], the latest event that is complete before this one can be; events_ if none.
  std::vector<uint32_t> events_before() const {
    std::vector<uint32_t> before(events_, events_);
    const auto later = [&](uint32_t a, uint32_t b) {
      return b == events_ || (a != events_ && place_of_event_[a] > place_of_event_[b]) ? a : b;
    };
    for (const Graph::TaskNode& node : graph_.tasks()) {
      uint32_t last = events_;
      for (const Wait& wait : node.waits)
        if (wait.lag == 0) last = later(wait.event.id, last);
      for (const Signal& signal : node.signals)
        if (signal.rank == rank_ && !signal.dynamic)
          before[signal.event.id] = later(last, before[signal.event.id]);
    }
    return before;
  }

  /// Returns this scheduler's share of the tasks that wait for an event.
  Watch share_of(uint32_t event, uint32_t scheduler) {
    const bool shared = event == events_ || plan_.launch[event] == Launch::every;
    const std::vector<Dependent>& all = of_event_[event];
    const size_t shares = shared ? schedulers_ : 1, share = shared ? scheduler : 0;
    const size_t from = all.size() * share / shares, to = all.size() * (share + 1) / shares;
    Watch watch{.event = event,
                .triggers = event == events_ ? 0 : triggers_[event].triggers,
                .tasks_at = static_cast<uint32_t>(plan_.dependents.size()),
                .tasks = static_cast<uint32_t>(to - from),
                .opens_at = 0,
                .opens = 0,
                .counts = 0,
                .announced = event != events_ && !triggers_[event].sys ? 1u : 0u,
                .opened_tasks_at = 0,
                .opened_tasks = 0,
                .unused = {}};
    for (size_t i = from; i < to; ++i) {
      watch.counts |= all[i].waits > 1 || all[i].worker != kAnyWorker;
      plan_.dependents.push_back(all[i]);
    }
    return watch;
  }

  void write_watches() {
    std::vector<uint32_t> by_place(events_);
    for (uint32_t event = 0; event < events_; ++event) by_place[event] = event;
    std::sort(by_place.begin(), by_place.end(),
              [&](uint32_t a, uint32_t b) { return place_of_event_[a] < place_of_event_[b]; });
    const std::vector<uint32_t> before = events_before();
    for (uint32_t scheduler = 0; scheduler < schedulers_; ++scheduler)
      plan_.watches.push_back(share_of(events_, scheduler));
    for (uint32_t scheduler = 0; scheduler < schedulers_; ++scheduler) {
      // A scheduler begins to watch an event when it sees the last of its own events that precede
      // it. So it misses none and watches few at a time.
      std::vector<uint32_t> seen_by(events_ + 1, events_);
      std::vector<std::vector<uint32_t>> opened_by(events_ + 1);
      uint32_t watched = 0;
      for (const uint32_t event : by_place) {
        const uint32_t opener = seen_by[before[event]];
        seen_by[event] = opener;
        if (!watches(scheduler, event)) continue;
        opened_by[opener].push_back(event);
        seen_by[event] = event;
        ++watched;
      }
      most_watched_ = std::max(most_watched_, watched);
      std::vector<uint32_t> watch_of(events_ + 1, scheduler);
      const auto open_by = [&](uint32_t opener) {
        const auto at = static_cast<uint32_t>(plan_.watches.size());
        for (const uint32_t event : opened_by[opener]) {
          watch_of[event] = static_cast<uint32_t>(plan_.watches.size());
          plan_.watches.push_back(share_of(event, scheduler));
        }
        Watch& by = plan_.watches[watch_of[opener]];
        by.opens_at = at;
        by.opens = static_cast<uint32_t>(opened_by[opener].size());
        if (by.opens == 0) return;
        by.opened_tasks_at = plan_.watches[at].tasks_at;
        by.opened_tasks = plan_.watches[at].tasks;
      };
      open_by(events_);
      for (const uint32_t event : by_place)
        if (watches(scheduler, event)) open_by(event);
    }
  }

  std::span<const Graph> graphs_;
  const Graph& graph_;
  const uint32_t rank_;
  const std::vector<EventTriggers>& triggers_;
  const GraphOrder& order_;
  const uint32_t schedulers_, events_, tasks_;
  std::vector<std::vector<Dependent>> of_event_;
  std::vector<uint32_t> place_of_event_;
  uint32_t most_watched_ = 0;
  Launches::OfRank plan_;
};

Launches plan_launches(std::span<const Graph> graphs, const Triggers& triggers,
                       const GraphOrder& events_only, uint32_t schedulers, uint32_t event_slots) {
  Launches launches;
  uint32_t fullest = 0, fullest_rank = 0;
  for (uint32_t rank = 0; rank < graphs.size(); ++rank) {
    check_dynamic_signals(graphs[rank]);
    LaunchPlan plan(graphs, rank, triggers, events_only, schedulers);
    launches.ranks_.push_back(plan.make());
    if (plan.most_watched() > fullest) fullest_rank = rank;
    fullest = std::max(fullest, plan.most_watched());
  }
  if (event_slots != 0 && event_slots < fullest)
    throw InvalidGraph(
        GraphFault::queue_capacity,
        {fmt::format("a scheduler of rank {} serves {} events", fullest_rank, fullest),
         fmt::format("it can watch {}", event_slots),
         "tasks of the other events would never start"},
        fmt::format("event_slots of at least {}, or 0", fullest));
  launches.event_slots_ = event_slots != 0 ? event_slots : fullest;
  return launches;
}

}  // namespace tokenyard::megakernel
