/// Host-side descriptions of the task types that one megakernel can run.
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

/// One member of a task's Args, so that graphs can be written without the C++ type.
struct ArgField {
  enum class Kind : uint8_t { pointer, peer, u32, f32, event };
  std::string_view name;
  Kind kind;
  uint32_t offset;
};

struct TaskType {
  std::string_view name;
  uint32_t args_bytes;
  uint32_t scratch_bytes;            ///< of its Shared struct; 0 without
  bool streams;                      ///< has units that are loaded ahead of it
  bool loads_ahead;                  ///< has `ahead`
  std::span<const ArgField> fields;  ///< empty where the type lists none
  /// States what a task of these arguments touches (touches.hpp); null where the type does not.
  void (*touches)(Touches&, const std::byte* args) = nullptr;
};

/// A compiled kernel and the types it was made of, in the order of its dispatch table.
struct TaskSet {
  const KernelEntry* kernel = nullptr;
  std::span<const TaskType> types;
  bool scheduled = true;  ///< whether its kernel can be run with schedulers
  /// The same types in a kernel without the code for schedulers, which runs without them take; null
  /// where `kernel` is for both.
  const KernelEntry* placed = nullptr;
  /// The same types in a kernel for hosts that reports each access; null: there is none.
  const KernelEntry* watched = nullptr;

  const KernelEntry& kernel_for(uint32_t schedulers) const {
    return schedulers == 0 && placed != nullptr ? *placed : *kernel;
  }
  /// Returns the index of the type of this name. Throws InvalidArgument listing all names.
  uint32_t index_of(std::string_view name) const;
};

}  // namespace tokenyard::megakernel
