/// Memory of one rank, as Python holds it and moves pieces of it about.
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tokenyard/megakernel/megakernel.hpp"
#include "upon_world.hpp"

namespace tokenyard::python {

namespace nb = nanobind;
namespace mk = tokenyard::megakernel;

/// A rank's TensorMemory.
struct HeldMemory : UponWorld {
  explicit HeldMemory(UponWorld upon) : UponWorld(std::move(upon)), memory(*world) {}
  mk::TensorMemory memory;
};

/// A place in memory that tasks reach. Python moves it about and never looks into it.
struct Piece {
  std::byte* address;
  size_t bytes;
  std::shared_ptr<HeldMemory> owner;

  Piece at(size_t offset) const {
    if (offset > bytes)
      throw InvalidArgument("offset", fmt::format("at most {}", bytes), fmt::format("{}", offset));
    return {address + offset, bytes - offset, owner};
  }
};

using HostBytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// The memory of one rank; lives as long as a piece of it, or a graph or kernel that was given one,
/// or this.
class Memory {
 public:
  explicit Memory(const WorldHandle& world) : held_(make_upon<HeldMemory>(world)) {}

  Piece local(size_t bytes) {
    const Callers::Turn turn = held_->turn();
    nb::gil_scoped_release unlocked;
    return {static_cast<std::byte*>(held_->memory.local(bytes)), bytes, held_};
  }
  /// Memory of the host that tasks reach, too, and an array of it, which keeps it alive.
  std::pair<Piece, HostBytes> visible(size_t bytes) {
    const Callers::Turn turn = held_->turn();
    const Piece piece = [&] {
      nb::gil_scoped_release unlocked;
      return Piece{static_cast<std::byte*>(held_->memory.visible(bytes)), bytes, held_};
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
    for (void* const piece : held_->memory.shared(bytes))
      pieces.push_back({static_cast<std::byte*>(piece), bytes, held_});
    return pieces;
  }
  void write(const Piece& to, const nb::bytes& from) {
    check(to, from.size());
    const char* const begin = from.c_str();
    const size_t bytes = from.size();
    const Callers::Turn turn = held_->turn();
    nb::gil_scoped_release unlocked;
    held_->memory.write(to.address, begin, bytes);
  }
  nb::bytes read(const Piece& from, size_t bytes) {
    check(from, bytes);
    const Callers::Turn turn = held_->turn();
    std::string to(bytes, '\0');
    {
      nb::gil_scoped_release unlocked;
      held_->memory.read(to.data(), from.address, bytes);
    }
    return nb::bytes(to.data(), to.size());
  }

  const std::shared_ptr<HeldMemory>& held() const { return held_; }

 private:
  static void check(const Piece& piece, size_t bytes) {
    if (bytes > piece.bytes)
      throw InvalidArgument("bytes", fmt::format("at most the piece's {}", piece.bytes),
                            fmt::format("{}", bytes));
  }

  std::shared_ptr<HeldMemory> held_;
};

}  // namespace tokenyard::python
