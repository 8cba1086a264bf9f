#include "base/tensor_arguments.hpp"
#include "fabric/agreement.hpp"
#include "fabric/arena.hpp"
#include "fabric/gather.hpp"
#include "fabric/world_access.hpp"
#include "megakernel/device_tables.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::megakernel {

namespace {

void check_copy(const TensorView& to, const ConstTensorView& from) {
  require_memory("to", to);
  require_memory("from", from);
  if (to.bytes() != from.bytes())
    throw InvalidArgument("from", std::to_string(to.bytes()) + " bytes, as `to` has",
                          std::to_string(from.bytes()));
}

}  // namespace

struct TensorMemory::Impl {
  const std::shared_ptr<World> pinned;  ///< stays when the caller's World goes on
  World& world;
  std::vector<std::unique_ptr<DeviceMemory>> local;
  std::vector<ArenaBlock> shared;
};

TensorMemory::TensorMemory(World& world)
    : impl_([&] {
        const std::shared_ptr<World> pinned = WorldAccess::pinned(world);
        return new Impl{.pinned = pinned, .world = *pinned, .local = {}, .shared = {}};
      }()) {}
TensorMemory::~TensorMemory() = default;

uint64_t TensorMemory::guard_bytes() const {
  // Enough for the threads of a block that each access one element too far.
  return accelerator_of(impl_->world).kind() == AcceleratorKind::host ? 4096 : 0;
}

TensorView TensorMemory::allocate(size_t bytes, bool visible) {
  const auto kind = visible ? DeviceMemory::Kind::shared : DeviceMemory::Kind::device;
  const uint64_t all = (Extent(bytes) + guard_bytes()).count();
  impl_->local.push_back(std::make_unique<DeviceMemory>(accelerator_of(impl_->world), all, kind));
  return TensorView::bytes_at(impl_->local.back()->as<void>(), bytes);
}

TensorView TensorMemory::local(size_t bytes) {
  return allocate(bytes, false);
}

TensorView TensorMemory::visible(size_t bytes) {
  return allocate(bytes, true);
}

std::vector<TensorView> TensorMemory::shared(size_t bytes) {
  World& world = with_filled_slots(impl_->world, "a megakernel");
  ArenaBlock block = arena_of(world).allocate(bytes, {});
  accelerator_of(world).fill(block.data(), 0, bytes, {});
  await_stream(world, {}, "a zeroed tensor");
  struct Place {
    uint64_t offset, bytes;
  };
  const auto places = gather(world, Place{block.offset(), bytes}, "megakernel: a shared tensor");
  std::vector<TensorView> pieces;
  for (const Place& theirs : places) {
    const auto rank = static_cast<uint32_t>(pieces.size());
    if (theirs.bytes != bytes)
      throw InvalidArgument("bytes of a shared tensor", std::to_string(bytes),
                            std::to_string(theirs.bytes), rank);
    pieces.push_back(TensorView::bytes_at(arena_of(world).base_of(rank) + theirs.offset, bytes));
  }
  impl_->shared.push_back(std::move(block));
  return pieces;
}

void TensorMemory::write(const TensorView& to, const ConstTensorView& from) {
  check_copy(to, from);
  accelerator_of(impl_->world).copy(to.data, from.data, from.bytes(), {});
  await_stream(impl_->world, {}, "a tensor written by the host");
}

void TensorMemory::read(const TensorView& to, const ConstTensorView& from) {
  check_copy(to, from);
  accelerator_of(impl_->world).copy(to.data, from.data, from.bytes(), {});
  await_stream(impl_->world, {}, "a tensor read by the host");
}

}  // namespace tokenyard::megakernel
