/// The dispatch table of a kernel, built from its task types.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>

#include "device/kernel.hpp"
#include "megakernel/kernels/context.hpp"
#include "tokenyard/megakernel/task_set.hpp"

namespace tokenyard::megakernel {

template <class T>
concept Streams = requires(const typename T::Args& args) { T::stream(args, 0u, 1u); };

template <class T>
concept LoadsAhead =
    requires(Ahead& ahead, const typename T::Args& args) { T::ahead(ahead, args); };

template <class T>
concept HasScratch = requires { sizeof(typename T::Shared); };

template <class T>
concept HasFields = requires { std::size(T::kFields); };

template <class T>
concept StatesTouches =
    requires(Touches& touches, const typename T::Args& args) { T::touches(touches, args); };

template <class T>
constexpr TaskType task_type() {
  static_assert(std::is_trivially_copyable_v<typename T::Args>);
  static_assert(alignof(typename T::Args) <= kPacketAlignment);
  TaskType type{.name = T::kName,
                .args_bytes = sizeof(typename T::Args),
                .scratch_bytes = 0,
                .streams = Streams<T>,
                .loads_ahead = LoadsAhead<T>,
                .fields = {}};
  if constexpr (HasScratch<T>) type.scratch_bytes = sizeof(typename T::Shared);
  if constexpr (HasFields<T>) type.fields = T::kFields;
  if constexpr (StatesTouches<T>)
    type.touches = [](Touches& touches, const std::byte* args) {
      T::touches(touches, *reinterpret_cast<const typename T::Args*>(args));
    };
  return type;
}

template <class... Tasks>
struct TaskList {
  /// Whether each type has its own code for everything from the task's events to its signals: fewer
  /// steps in between, and more code. Not worth it where words order tasks (H200: 4 us per token).
  static constexpr bool kOwnPaths = true;
  /// Whether registers hold the values that the begin and the end of every task need. Not if tasks
  /// need more registers than there are.
  static constexpr bool kSettles = true;
  /// Whether its graphs may run with schedulers: the code for that is large and takes registers
  /// from all tasks.
  static constexpr bool kScheduled = true;
  template <size_t index>
  using Type = std::tuple_element_t<index, std::tuple<Tasks...>>;

  /// Calls body<T>() for the type of this index, found by bisection.
  template <size_t first = 0, size_t count = sizeof...(Tasks), class Body>
  static TOKENYARD_DEVICE auto with_type(uint32_t type, Body body) {
    if constexpr (count == 1) {
      return body.template operator()<Type<first>>();
    } else {
      constexpr size_t half = count / 2;
      if (type < first + half) return with_type<first, half>(type, body);
      return with_type<first + half, count - half>(type, body);
    }
  }
  template <class T>
  static TOKENYARD_DEVICE const typename T::Args& args_of(const std::byte* args) {
    return *reinterpret_cast<const typename T::Args*>(args);
  }
  /// Runs a task.
  static TOKENYARD_DEVICE void run(uint32_t type, const std::byte* args, Context& context) {
    with_type(type, [&]<class T>() { T::run(context, args_of<T>(args)); });
  }
  /// Returns the rows that a warp of the task streams.
  static TOKENYARD_DEVICE StreamedRows stream(const Packet& packet, uint32_t warp, uint32_t warps) {
    StreamedRows stream{};
    with_type(packet.type, [&]<class T>() {
      if constexpr (Streams<T>) stream = T::stream(args_of<T>(packet.args()), warp, warps);
    });
    return stream;
  }
  static TOKENYARD_DEVICE bool loads_ahead(uint32_t type) {
    bool loads = false;
    with_type(type, [&]<class T>() { loads = LoadsAhead<T>; });
    return loads;
  }
  static TOKENYARD_DEVICE void ahead(const Packet& packet, Ahead& to) {
    with_type(packet.type, [&]<class T>() {
      if constexpr (LoadsAhead<T>) T::ahead(to, args_of<T>(packet.args()));
    });
  }
  static constexpr std::array<TaskType, sizeof...(Tasks)> types() {
    return {task_type<Tasks>()...};
  }
};

/// The same tasks in a kernel that never runs with schedulers.
template <class List>
struct Placed : List {
  static constexpr bool kScheduled = false;
};

/// Returns the host's description of a list; `kernel` is the one that TOKENYARD_DEFINE_MEGAKERNEL
/// made of it.
template <class List>
TaskSet task_set(const KernelEntry& kernel) {
  static constexpr auto types = List::types();
  return {.kernel = &kernel, .types = types, .scheduled = List::kScheduled};
}
/// Returns the same with `placed`, the kernel made of Placed<List>.
template <class List>
TaskSet task_set(const KernelEntry& kernel, const KernelEntry& placed) {
  TaskSet set = task_set<List>(kernel);
  set.placed = &placed;
  return set;
}

}  // namespace tokenyard::megakernel
