/// Python's handle of one rank's memory for task graphs.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "piece.hpp"
#include "tokenyard/megakernel/megakernel.hpp"
#include "upon_world.hpp"

namespace tokenyard::python {

namespace nb = nanobind;

/// A rank's TensorMemory and its World.
struct HeldMemory : UponWorld {
  explicit HeldMemory(UponWorld upon) : UponWorld(std::move(upon)), memory(*world) {}
  mk::TensorMemory memory;
};

using HostBytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// The memory of one rank. It lives as long as this, any of its pieces, and any graph or kernel
/// that uses one.
class Memory {
 public:
  explicit Memory(const WorldHandle& world) : held_(make_upon<HeldMemory>(world)) {}

  /// Allocates zeroed memory. `dtype`: of the array to be copied there; empty if none.
  Piece local(size_t bytes, const std::string& dtype) {
    const Callers::Turn turn = held_->turn();
    nb::gil_scoped_release unlocked;
    return own(held_->memory.local(bytes), dtype);
  }
  /// Allocates host memory that tasks access, too; returns it and an array that keeps it alive.
  std::pair<Piece, HostBytes> visible(size_t bytes, const std::string& dtype) {
    const Callers::Turn turn = held_->turn();
    const Piece piece = [&] {
      nb::gil_scoped_release unlocked;
      return own(held_->memory.visible(bytes), dtype);
    }();
    const nb::capsule owner(new std::shared_ptr(held_), [](void* shared) noexcept {
      delete static_cast<std::shared_ptr<HeldMemory>*>(shared);
    });
    return {piece, HostBytes(piece.address, {bytes}, owner)};
  }
  std::vector<Piece> shared(size_t bytes) {
    const Callers::Turn turn = held_->turn();
    nb::gil_scoped_release unlocked;
    std::vector<Piece> pieces;
    const std::vector<TensorView> begins = held_->memory.shared(bytes);
    std::vector<const void*> all;
    for (const TensorView& begin : begins) all.push_back(begin.data);
    for (const TensorView& begin : begins)
      pieces.push_back(piece({.begin = begin.as<std::byte>(),
                              .bytes = bytes,
                              .guard = 0,
                              .dtype = {},
                              .of_ranks = all,
                              .rank = static_cast<uint32_t>(pieces.size())}));
    return pieces;
  }
  void write(const Piece& to, const nb::bytes& from) {
    check(to, from.size());
    const char* const begin = from.c_str();
    const size_t bytes = from.size();
    const Callers::Turn turn = held_->turn();
    nb::gil_scoped_release unlocked;
    held_->memory.write(TensorView::bytes_at(to.address, bytes),
                        ConstTensorView::bytes_at(begin, bytes));
  }
  nb::bytes read(const Piece& from, size_t bytes) {
    check(from, bytes);
    const Callers::Turn turn = held_->turn();
    std::string to(bytes, '\0');
    {
      nb::gil_scoped_release unlocked;
      held_->memory.read(TensorView::bytes_at(to.data(), bytes),
                         ConstTensorView::bytes_at(from.address, bytes));
    }
    return nb::bytes(to.data(), to.size());
  }

  const std::shared_ptr<HeldMemory>& held() const { return held_; }

 private:
  Piece own(const TensorView& memory, const std::string& dtype) const {
    return piece({.begin = memory.as<std::byte>(),
                  .bytes = memory.bytes(),
                  .guard = held_->memory.guard_bytes(),
                  .dtype = dtype,
                  .of_ranks = {},
                  .rank = held_->world->rank()});
  }
  Piece piece(Allocation allocation) const {
    std::byte* const begin = allocation.begin;
    const size_t bytes = allocation.bytes;
    return {begin, bytes, held_, std::make_shared<const Allocation>(std::move(allocation))};
  }
  static void check(const Piece& piece, size_t bytes) {
    if (bytes > piece.bytes)
      throw InvalidArgument("bytes", fmt::format("at most the piece's {}", piece.bytes),
                            fmt::format("{}", bytes));
  }

  std::shared_ptr<HeldMemory> held_;
};

}  // namespace tokenyard::python
