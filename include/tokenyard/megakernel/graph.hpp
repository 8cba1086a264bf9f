/// A graph of tasks: the work of one rank in an iteration, and the order of that work.
///
///     Graph graph(builtin_tasks(), {.rank = 0, .ranks = 1});
///     const Tensor x = graph.tensor({.name = "x", .bytes = 4096});
///     const Event ready = graph.event({.name = "x ready"});
///     graph.add<Embed>({...}, {.name = "embed", .writes = {x.all()}, .signals = {{ready}}});
///     graph.add<Norm>({...}, {.name = "norm", .reads = {x.all()}, .waits = {{ready}}});
///
/// Every rank builds its own graph. Tensors and events with the same index are the same object on
/// every rank, so all ranks declare them alike and in the same order. A task may wait for several
/// events of its own rank and signal several events of any rank. An event is complete in iteration
/// i once it has received all its signals of that iteration.
///
/// Each task declares the regions that it reads, writes and adds to, and compile() proves from them
/// that no two tasks race. Where a tensor gives its addresses (`places`), these declarations are
/// also compared with the memory that tasks touch through their arguments (touches.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tokenyard/megakernel/event.hpp"
#include "tokenyard/megakernel/task_set.hpp"
#include "tokenyard/megakernel/touches.hpp"
#include "tokenyard/tensor.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kThisRank = UINT32_MAX;

/// Bytes [begin, end) of a tensor.
struct Region {
  uint32_t tensor = 0;
  uint64_t begin = 0, end = 0;
  uint32_t rank = kThisRank;  ///< that owns the bytes

  Region of(uint32_t other_rank) const { return {tensor, begin, end, other_rank}; }
};

struct Tensor {
  uint32_t id = 0;
  uint64_t bytes = 0;

  Region all() const { return {id, 0, bytes}; }
  Region part(uint64_t begin, uint64_t end) const { return {id, begin, end}; }
};

/// Contents of a tensor at the start of an iteration.
enum class Given : uint8_t {
  no,     ///< undefined: a task must write before another may read
  always  ///< valid: weights, inputs, or results of the previous iteration
};

struct TensorOptions {
  std::string name;
  uint64_t bytes = 0;
  Given given = Given::no;
  /// Every word is written and read by strong accesses and shows by its value whether it has
  /// arrived, so carried events are enough to order its readers and writers.
  bool words = false;
  /// [ranks] the tensor on each rank, at the addresses that this rank's tasks use; or one entry,
  /// for this rank only. Empty: unknown, and accesses to it are not checked.
  std::vector<ConstTensorView> places = {};
};

struct EventOptions {
  std::string name = {};
  std::optional<uint32_t> count = std::nullopt;  ///< signals per iteration, to be checked
  /// Upper bound of the signals per iteration whose number is known only on the device: one task
  /// calls expect(n), and others signal n times in total. 0 for an event whose count is static.
  uint32_t dynamic_max = 0;
  /// Task bodies themselves write and await its signals, as words of a tensor. The event orders
  /// tasks but makes only those words visible: tensors with TensorOptions::words.
  bool carried = false;
};

struct Wait {
  Event event;
  uint32_t lag = 0;  ///< 1: the event of the previous iteration
};

struct Signal {
  Event event;
  uint32_t rank = kThisRank;
  uint32_t count = 1;
  bool dynamic = false;  ///< the task's body signals, a number of times known at run time
};

struct TaskOptions {
  std::string name = {};  ///< empty: derived from the type
  std::vector<Region> reads = {}, writes = {};
  std::vector<Region> adds = {};     ///< by atomic sums, which commute
  std::vector<Region> streams = {};  ///< loaded ahead of the waits: no task writes them
  std::vector<Wait> waits = {};
  std::vector<Signal> signals = {};
  std::vector<Event> expects = {};  ///< dynamic events whose count this task determines
  std::optional<uint32_t> worker = std::nullopt;  ///< the only worker that may run it
  uint64_t cost_ns = 1000;                        ///< estimated run time, for placement
  uint32_t ahead_bytes = 0;                       ///< bytes of shared memory that it loads ahead
};

struct Task {
  uint32_t id = 0;
};

class Graph {
 public:
  struct Place {
    uint32_t rank = 0, ranks = 1;
  };
  struct TaskNode : TaskOptions {
    uint32_t type = 0;
    std::vector<std::byte> args;
  };

  /// A rank's copy of a tensor, which begins at the address that is this entry's key.
  struct Placed {
    uint64_t end;
    uint32_t tensor, rank;
  };
  /// Memory that arguments may name, and the number of bytes behind it that no task may touch.
  struct Reached {
    uint64_t end, guard;
  };

  Graph(const TaskSet& tasks, Place place);

  /// Adds a tensor. Throws InvalidArgument if it overlaps another one.
  Tensor tensor(TensorOptions options);
  /// Declares memory that arguments of tasks may name. Tasks may read its bytes outside all
  /// tensors, and may not write them. `guard`: bytes behind it that belong to nothing else.
  void reach(const ConstTensorView& memory, uint64_t guard = 0);
  Event event(EventOptions options);
  template <class T>
  Task add(const typename T::Args& args, TaskOptions options) {
    static_assert(std::is_trivially_copyable_v<typename T::Args>);
    return add(T::kName, std::as_bytes(std::span(&args, 1)), std::move(options));
  }
  /// Adds a task by the name of its type. `pieces`: the memory of every argument that names memory,
  /// if the caller knows it.
  Task add(std::string_view type, std::span<const std::byte> args, TaskOptions options,
           const std::optional<std::vector<ArgPiece>>& pieces = std::nullopt);
  /// Ends each iteration with this event: no task of the next iteration starts before it is
  /// complete. A task that signals it, or precedes such a task, may call Context::end_loop.
  void loop_on(Event event);
  /// Makes each run a single iteration, so that no order between iterations is needed.
  void once() { once_ = true; }
  /// Requires at least this many compute warps per block, among which tasks divide their work.
  void need_warps(uint32_t warps) { warps_needed_ = warps; }
  /// Sets the run time that placement assumes, for example from Trace::measured_costs().
  void set_cost(Task task, uint64_t cost_ns);

  const TaskSet& task_set() const { return tasks_; }
  const Place& place() const { return place_; }
  const std::vector<TensorOptions>& tensors() const { return tensors_; }
  const std::vector<EventOptions>& events() const { return events_; }
  const std::vector<TaskNode>& tasks() const { return nodes_; }
  std::optional<Event> loop() const { return loop_; }
  bool is_once() const { return once_; }
  uint32_t warps_needed() const { return warps_needed_; }
  const std::map<uint64_t, Placed>& placed() const { return placed_; }
  const std::map<uint64_t, Reached>& reached() const { return reached_; }
  /// Returns the memory that a task touches; nothing if its type does not state it.
  Touches touches_of(uint32_t task) const;

  friend class GraphCodec;

 private:
  /// Throws InvalidArgument if the task names tensors, events, ranks or counts that do not exist.
  void check(const TaskOptions& task) const;
  /// Checks a graph that came from another rank as `add` and `event` check their arguments.
  void check_all_tasks() const;
  void check_no_overlap(const TensorOptions& tensor, uint64_t begin) const;

  TaskSet tasks_;
  Place place_;
  std::vector<TensorOptions> tensors_;
  std::vector<EventOptions> events_;
  std::vector<TaskNode> nodes_;
  std::optional<Event> loop_;
  bool once_ = false;
  uint32_t warps_needed_ = 1;  ///< of this rank; not compared between ranks
  // Keyed by the address of the first byte; also of this rank only:
  std::map<uint64_t, Placed> placed_;  ///< tensors with known addresses
  std::map<uint64_t, Reached> reached_;
};

}  // namespace tokenyard::megakernel
