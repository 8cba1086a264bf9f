/// The task types that one megakernel can run, as host code sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tokenyard {
struct KernelEntry;
}

namespace tokenyard::megakernel {

class Touches;

/// One member of a task's Args, so that graphs can be built without the C++ type.
struct ArgField {
  enum class Kind : uint8_t { pointer, peer, u32, f32, event };
  std::string_view name;
  Kind kind;
  uint32_t offset;
};

struct TaskType {
  std::string_view name;
  uint32_t args_bytes;
  uint32_t scratch_bytes;            ///< size of its Shared struct; 0: none
  bool streams;                      ///< has units that its worker loads ahead
  bool loads_ahead;                  ///< has a member function `ahead`
  std::span<const ArgField> fields;  ///< empty where the type lists none
  /// States the memory that a task with these arguments touches (touches.hpp); null: not stated.
  void (*touches)(Touches&, const std::byte* args) = nullptr;
};

/// A compiled kernel and its task types, in the order of its dispatch table.
struct TaskSet {
  const KernelEntry* kernel = nullptr;
  std::span<const TaskType> types;
  bool scheduled = true;  ///< whether its kernel can run with schedulers
  /// Kernel with the same types and no code for schedulers, for static runs; null: `kernel` serves
  /// both.
  const KernelEntry* placed = nullptr;
  /// Kernel with the same types that reports each access, for hosts; null: none.
  const KernelEntry* watched = nullptr;

  const KernelEntry& kernel_for(uint32_t schedulers) const {
    return schedulers == 0 && placed != nullptr ? *placed : *kernel;
  }
  /// Returns the index of the type with this name. Throws InvalidArgument, which lists all names.
  uint32_t index_of(std::string_view name) const;
};

}  // namespace tokenyard::megakernel
