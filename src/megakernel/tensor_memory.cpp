#include "fabric/arena.hpp"
#include "fabric/gather.hpp"
#include "megakernel/device_tables.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::megakernel {

struct TensorMemory::Impl {
  World& world;
  std::vector<std::unique_ptr<DeviceMemory>> local;
  std::vector<ArenaBlock> shared;
};

TensorMemory::TensorMemory(World& world)
    : impl_(new Impl{.world = world, .local = {}, .shared = {}}) {}
TensorMemory::~TensorMemory() = default;

uint64_t TensorMemory::guard_bytes() const {
  // As far as the threads of a block reach together when each goes one element too far.
  return impl_->world.accelerator().kind() == AcceleratorKind::host ? 4096 : 0;
}

void* TensorMemory::allocate(size_t bytes, bool visible) {
  const auto kind = visible ? DeviceMemory::Kind::shared : DeviceMemory::Kind::device;
  const uint64_t all = (Extent(bytes) + guard_bytes()).count();
  impl_->local.push_back(std::make_unique<DeviceMemory>(impl_->world.accelerator(), all, kind));
  return impl_->local.back()->as<void>();
}

void* TensorMemory::local(size_t bytes) {
  return allocate(bytes, false);
}

void* TensorMemory::visible(size_t bytes) {
  return allocate(bytes, true);
}

std::vector<void*> TensorMemory::shared(size_t bytes) {
  World& world = impl_->world;
  ArenaBlock block = world.arena().allocate(bytes, {});
  world.accelerator().fill(block.data(), 0, bytes, {});
  await_stream(world, {}, "a zeroed tensor");
  struct Place {
    uint64_t offset, bytes;
  };
  const auto places = gather(world, Place{block.offset(), bytes}, "megakernel: a shared tensor");
  std::vector<void*> pieces;
  for (const Place& theirs : places) {
    const auto rank = static_cast<uint32_t>(pieces.size());
    if (theirs.bytes != bytes)
      throw InvalidArgument("bytes of a shared tensor", std::to_string(bytes),
                            std::to_string(theirs.bytes), rank);
    pieces.push_back(world.arena().base_of(rank) + theirs.offset);
  }
  impl_->shared.push_back(std::move(block));
  return pieces;
}

void TensorMemory::write(void* to, const void* from, size_t bytes) {
  impl_->world.accelerator().copy(to, from, bytes, {});
  await_stream(impl_->world, {}, "a tensor written by the host");
}

void TensorMemory::read(void* to, const void* from, size_t bytes) {
  impl_->world.accelerator().copy(to, from, bytes, {});
  await_stream(impl_->world, {}, "a tensor read by the host");
}

}  // namespace tokenyard::megakernel
