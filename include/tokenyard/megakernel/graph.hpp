/// A graph of tasks: the work of one rank in an iteration, and the events that it awaits.
///
///     Graph graph(builtin_tasks(), {.rank = 0, .ranks = 1});
///     const Tensor x = graph.tensor({.name = "x", .bytes = 4096});
///     const Event ready = graph.event({.name = "x ready"});
///     graph.add<Embed>({...}, {.name = "embed", .writes = {x.all()}, .signals = {{ready}}});
///     graph.add<Norm>({...}, {.name = "norm", .reads = {x.all()}, .waits = {{ready}}});
///
/// Every rank writes its own graph; tensors and events of the same place in the lists are the same
/// object of each rank, so they are declared alike on all ranks. A task may wait for several
/// events, of its own rank, and signal several, of any rank. An event is complete in iteration i
/// once all its signals of that iteration have come.
///
/// What a task reads, writes and adds to is declared, and compile() proves from it that no task
/// meets another where it should not. Where a tensor says at which addresses it lies (`places`),
/// the declarations are compared with what tasks touch by their arguments (touches.hpp).
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
  uint32_t rank = kThisRank;  ///< whose

  Region of(uint32_t other_rank) const { return {tensor, begin, end, other_rank}; }
};

struct Tensor {
  uint32_t id = 0;
  uint64_t bytes = 0;

  Region all() const { return {id, 0, bytes}; }
  Region part(uint64_t begin, uint64_t end) const { return {id, begin, end}; }
};

/// Whether a tensor has contents when an iteration begins.
enum class Given : uint8_t {
  no,     ///< nothing that may be read before a task has written it
  always  ///< weights, inputs, or data left by the previous iteration
};

struct TensorOptions {
  std::string name;
  uint64_t bytes = 0;
  Given given = Given::no;
  /// Every word of it is written and read by strong accesses, and tells by itself whether it has
  /// come: carried events are enough to order them.
  bool words = false;
  /// [ranks] where this rank's tasks find it on each rank, or where they find this rank's alone.
  /// Empty: unknown, and then nobody compares.
  std::vector<ConstTensorView> places = {};
};

struct EventOptions {
  std::string name = {};
  std::optional<uint32_t> count = std::nullopt;  ///< signals per iteration, if known
  /// At most so many signals whose number only the device knows: one task calls expect(n), others
  /// signal n times in all. 0 for an event whose count is static.
  uint32_t dynamic_max = 0;
  /// Its signals are words that bodies of tasks write and await themselves. It orders tasks, and
  /// makes visible those words only: tensors that are TensorOptions::words.
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
  bool dynamic = false;  ///< the task's body signals, as often as it finds
};

struct TaskOptions {
  std::string name = {};  ///< made from the type, if empty
  std::vector<Region> reads = {}, writes = {};
  std::vector<Region> adds = {};     ///< atomic sums: they commute with one another
  std::vector<Region> streams = {};  ///< loaded ahead, before the waits: written by no task
  std::vector<Wait> waits = {};
  std::vector<Signal> signals = {};
  std::vector<Event> expects = {};  ///< dynamic events whose count this task determines
  std::optional<uint32_t> worker = std::nullopt;  ///< the only worker that may run it
  uint64_t cost_ns = 1000;                        ///< estimated duration, for placement
  uint32_t ahead_bytes = 0;                       ///< shared memory that it loads ahead
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

  /// A tensor of a rank, from an address to its end.
  struct Placed {
    uint64_t end;
    uint32_t tensor, rank;
  };
  /// A piece of memory that arguments may name, and bytes behind it that nobody may touch.
  struct Reached {
    uint64_t end, guard;
  };

  Graph(const TaskSet& tasks, Place place);

  /// Throws InvalidArgument if its memory overlaps another tensor's.
  Tensor tensor(TensorOptions options);
  /// Declares memory that arguments of tasks may name: bytes in no tensor may be read there, and
  /// are written by no task.
  /// `guard`: bytes behind it that belong to nothing else.
  void reach(const ConstTensorView& memory, uint64_t guard = 0);
  Event event(EventOptions options);
  template <class T>
  Task add(const typename T::Args& args, TaskOptions options) {
    static_assert(std::is_trivially_copyable_v<typename T::Args>);
    return add(T::kName, std::as_bytes(std::span(&args, 1)), std::move(options));
  }
  /// `pieces`: the memory of all arguments that name any, where the caller knows it.
  Task add(std::string_view type, std::span<const std::byte> args, TaskOptions options,
           const std::optional<std::vector<ArgPiece>>& pieces = std::nullopt);
  /// An iteration ends with this event; a task that signals it, or comes before one, may call
  /// Context::end_loop. No task of the next iteration starts before it.
  void loop_on(Event event);
  /// Makes each run one iteration, so that no order between iterations is needed.
  void once() { once_ = true; }
  /// Requires at least this many compute warps per block: tasks divide their work among them.
  void need_warps(uint32_t warps) { warps_needed_ = warps; }
  /// Sets the duration that placement assumes, as measured by a trace.
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
  /// States what a task touches; nothing where its type does not say.
  Touches touches_of(uint32_t task) const;

  friend class GraphCodec;

 private:
  void check_no_overlap(const TensorOptions& tensor, uint64_t begin) const;

  TaskSet tasks_;
  Place place_;
  std::vector<TensorOptions> tensors_;
  std::vector<EventOptions> events_;
  std::vector<TaskNode> nodes_;
  std::optional<Event> loop_;
  bool once_ = false;
  uint32_t warps_needed_ = 1;  ///< of this rank: others need not know
  // Likewise, by the address of the first byte:
  std::map<uint64_t, Placed> placed_;  ///< tensors whose places are known
  std::map<uint64_t, Reached> reached_;
};

}  // namespace tokenyard::megakernel
