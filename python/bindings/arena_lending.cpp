/// The arena as an allocator for torch.cuda.MemPool, so that a GEMM writes directly to memory that
/// peers read. torch calls two C functions by name and passes only a device, so the World that
/// serves a device is process-wide state.
#include <sys/types.h>

#include <map>
#include <mutex>

#include "device/accelerator.hpp"
#include "fabric/arena.hpp"
#include "fabric/world_access.hpp"
#include "registration.hpp"
#include "world.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tokenyard::python {
namespace {

class Lending {
 public:
  static Lending& of_this_process() {
    static Lending lending;
    return lending;
  }

  /// Makes `world` serve its device, instead of any other World.
  void lend(const std::shared_ptr<World>& world) {
    const std::lock_guard lock(mutex_);
    lenders_[accelerator_of(*world).device_index()] = world;
  }

  /// Returns null if no World serves the device, or its arena is too small: torch then reports that
  /// it is out of memory.
  void* allocate(ssize_t bytes, int device, uintptr_t stream) {
    const std::lock_guard lock(mutex_);
    const auto lender = lenders_.find(device);
    const std::shared_ptr<World> world = lender == lenders_.end() ? nullptr : lender->second.lock();
    if (world == nullptr || bytes <= 0) return nullptr;
    try {
      ArenaBlock block = arena_of(*world).allocate(static_cast<size_t>(bytes), Stream{stream});
      void* const memory = block.data();
      lent_.emplace(memory, std::move(block));
      return memory;
    } catch (const Error&) {
      return nullptr;
    }
  }

  /// Frees a block. A block keeps its memory mapped even if its World is gone.
  void free(void* memory, uintptr_t stream) {
    const std::lock_guard lock(mutex_);
    const auto block = lent_.find(memory);
    if (block == lent_.end()) return;
    block->second.record_stream(Stream{stream});
    lent_.erase(block);
  }

 private:
  std::mutex mutex_;
  std::map<int, std::weak_ptr<World>> lenders_;  // By device.
  std::map<void*, ArenaBlock> lent_;
};

}  // namespace

void register_arena_lending(nb::module_& m) {
  m.def(
      "lend_arena", [](const WorldHandle& world) { Lending::of_this_process().lend(world.get()); },
      "world"_a,
      "Makes tokenyard_allocate of this library allocate from this world's arena, for its device.");
}

}  // namespace tokenyard::python

// The signatures that torch.cuda.memory.CUDAPluggableAllocator requires.
extern "C" {
__attribute__((visibility("default"), used)) void* tokenyard_allocate(ssize_t bytes, int device,
                                                                      void* stream) {
  return tokenyard::python::Lending::of_this_process().allocate(
      bytes, device, reinterpret_cast<uintptr_t>(stream));
}
__attribute__((visibility("default"), used)) void tokenyard_free(void* memory, ssize_t, int,
                                                                 void* stream) {
  tokenyard::python::Lending::of_this_process().free(memory, reinterpret_cast<uintptr_t>(stream));
}
}
