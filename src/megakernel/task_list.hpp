/// The dispatch table of a kernel, made from its task types.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>

#include "device/kernel.hpp"
#include "megakernel/context.hpp"
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
  return type;
}

template <class... Tasks>
struct TaskList {
  static DEVICE void run(const Packet& packet, Context& context) {
    uint32_t type = 0;
    (void)((type++ == packet.type && (Tasks::run(context, args<Tasks>(packet)), true)) || ...);
  }
  /// What a warp of the task streams.
  static DEVICE StreamedRows stream(const Packet& packet, uint32_t warp, uint32_t warps) {
    uint32_t type = 0;
    StreamedRows stream{};
    (void)((type++ == packet.type && (stream = stream_of<Tasks>(packet, warp, warps), true)) ||
           ...);
    return stream;
  }
  static DEVICE bool loads_ahead(const Packet& packet) {
    uint32_t type = 0;
    bool loads = false;
    (void)((type++ == packet.type && (loads = LoadsAhead<Tasks>, true)) || ...);
    return loads;
  }
  static DEVICE void ahead(const Packet& packet, Ahead& to) {
    uint32_t type = 0;
    (void)((type++ == packet.type && (ahead_of<Tasks>(packet, to), true)) || ...);
  }
  static constexpr std::array<TaskType, sizeof...(Tasks)> types() {
    return {task_type<Tasks>()...};
  }

 private:
  template <class T>
  static DEVICE const typename T::Args& args(const Packet& packet) {
    return *reinterpret_cast<const typename T::Args*>(packet.args());
  }
  template <class T>
  static DEVICE StreamedRows stream_of(const Packet& packet, uint32_t warp, uint32_t warps) {
    if constexpr (Streams<T>)
      return T::stream(args<T>(packet), warp, warps);
    else
      return {};
  }
  template <class T>
  static DEVICE void ahead_of(const Packet& packet, Ahead& to) {
    if constexpr (LoadsAhead<T>) T::ahead(to, args<T>(packet));
  }
};

/// What host code knows of a list; `kernel` is the one that DEFINE_MEGAKERNEL made of it.
template <class List>
TaskSet task_set(const KernelEntry& kernel) {
  static constexpr auto types = List::types();
  return {.kernel = &kernel, .types = types};
}

}  // namespace tokenyard::megakernel
