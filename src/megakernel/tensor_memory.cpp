#include <algorithm>

#include "base/tensor_arguments.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/agreement.hpp"
#include "fabric/arena.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/gather.hpp"
#include "fabric/network/network.hpp"
#include "fabric/network/network_memory.hpp"
#include "fabric/world_access.hpp"
#include "megakernel/device_tables.hpp"
#include "megakernel/far_ranks.hpp"
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

namespace {

/// A shared tensor of a world between hosts: this rank's piece, which other hosts put to, and
/// behind it a mirror of the piece of each far rank.
class FarPiece {
 public:
  FarPiece(World& world, size_t bytes, size_t mirrors)
      : world_(world),
        bytes_(bytes),
        stride_((bytes + kAlignment - 1) / kAlignment * kAlignment),
        memory_(world, stride_ * (1 + mirrors)) {}
  /// If a wait of the world has failed, peers may still put here, and the memory is kept.
  ~FarPiece() {
    for (const std::byte* mirror : mirrors_) network_of(world_)->mirrors().remove(mirror);
    const AbortFlag& flag = abort_flag_of(world_);
    if (flag.gone_ranks().empty() && !flag.cancelled()) memory_.give_back();
  }
  FarPiece(const FarPiece&) = delete;
  FarPiece& operator=(const FarPiece&) = delete;

  std::byte* data() const { return memory_.data(); }
  size_t all_bytes() const { return memory_.bytes(); }
  NetworkTarget target() const { return memory_.target(); }
  void make_known() { memory_.make_known(); }
  /// Returns the mirror of a far rank's piece, which is at `target`.
  std::byte* add_mirror(uint32_t rank, const NetworkTarget& target) {
    std::byte* const mirror = data() + stride_ * (1 + mirrors_.size());
    network_of(world_)->mirrors().add(
        mirror, {.rank = rank, .target = target, .key = memory_.target().key, .bytes = bytes_});
    mirrors_.push_back(mirror);
    return mirror;
  }

 private:
  static constexpr size_t kAlignment = 256;

  World& world_;
  const size_t bytes_, stride_;
  NetworkMemory memory_;
  std::vector<const std::byte*> mirrors_;
};

}  // namespace

struct TensorMemory::Impl {
  const std::shared_ptr<World> pinned;  ///< stays when the caller's World goes on
  World& world;
  std::vector<std::unique_ptr<DeviceMemory>> local;
  std::vector<ArenaBlock> shared;
  std::vector<std::unique_ptr<FarPiece>> far_pieces;

  std::vector<TensorView> between_hosts(size_t bytes);
  /// Views of ranks of other hosts are empty.
  std::vector<TensorView> in_arenas(size_t bytes);
  bool reaches(uint32_t rank) const {
    const Reach reach = world.topology().peers[rank].reach;
    return reach == Reach::self || reach == Reach::load_store;
  }
};

TensorMemory::TensorMemory(World& world)
    : impl_([&] {
        const std::shared_ptr<World> pinned = WorldAccess::pinned(world);
        return new Impl{
            .pinned = pinned, .world = *pinned, .local = {}, .shared = {}, .far_pieces = {}};
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

namespace {

void check_bytes(size_t mine, size_t theirs, uint32_t rank) {
  if (theirs != mine)
    throw InvalidArgument("bytes of a shared tensor", std::to_string(mine), std::to_string(theirs),
                          rank);
}

}  // namespace

std::vector<TensorView> TensorMemory::Impl::between_hosts(size_t bytes) {
  const FarRanks far_ranks(world);
  const std::vector<uint32_t> far = far_ranks.of(world.rank());
  require_network_reach(world, far_ranks);
  auto piece = std::make_unique<FarPiece>(world, bytes, far.size());
  accelerator_of(world).fill(piece->data(), 0, piece->all_bytes(), {});
  await_stream(world, {}, "a zeroed tensor");
  struct Place {
    uint64_t offset, bytes;
    uint32_t key, unused;
  };
  piece->make_known();
  const auto places = gather(world,
                             Place{.offset = piece->target().offset,
                                   .bytes = bytes,
                                   .key = piece->target().key,
                                   .unused = 0},
                             "megakernel: a shared tensor");
  std::vector<TensorView> pieces;
  for (uint32_t rank = 0; rank < places.size(); ++rank) {
    const Place& theirs = places[rank];
    check_bytes(bytes, theirs.bytes, rank);
    std::byte* at = piece->data();
    if (std::ranges::find(far, rank) != far.end()) {
      at = piece->add_mirror(rank, {.key = theirs.key, .offset = theirs.offset});
    } else if (rank != world.rank()) {
      at = arena_of(world).base_of(rank) + theirs.offset;
    }
    pieces.push_back(TensorView::bytes_at(at, bytes));
  }
  far_pieces.push_back(std::move(piece));
  return pieces;
}

std::vector<TensorView> TensorMemory::Impl::in_arenas(size_t bytes) {
  ArenaBlock block = allocate_on_all(world, bytes, "megakernel: memory of a shared tensor");
  accelerator_of(world).fill(block.data(), 0, bytes, {});
  await_stream(world, {}, "a zeroed tensor");
  struct Place {
    uint64_t offset, bytes;
  };
  const auto places = gather(world, Place{block.offset(), bytes}, "megakernel: a shared tensor");
  std::vector<TensorView> pieces;
  for (const Place& theirs : places) {
    const auto rank = static_cast<uint32_t>(pieces.size());
    check_bytes(bytes, theirs.bytes, rank);
    pieces.push_back(
        reaches(rank) ? TensorView::bytes_at(arena_of(world).base_of(rank) + theirs.offset, bytes)
                      : TensorView{});
  }
  shared.push_back(std::move(block));
  return pieces;
}

std::vector<TensorView> TensorMemory::shared(size_t bytes) {
  World& world = with_filled_slots(impl_->world, "a megakernel");
  return spans_hosts(world) ? impl_->between_hosts(bytes) : impl_->in_arenas(bytes);
}

std::vector<TensorView> TensorMemory::shared_on_host(size_t bytes) {
  with_filled_slots(impl_->world, "a megakernel");
  return impl_->in_arenas(bytes);
}

bool TensorMemory::reaches(uint32_t rank) const {
  if (rank >= impl_->world.size())
    throw InvalidArgument("rank", "below " + std::to_string(impl_->world.size()),
                          std::to_string(rank));
  return impl_->reaches(rank);
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
