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
#include "unlocked.hpp"
#include "world.hpp"

namespace tokenyard::python {

namespace nb = nanobind;
namespace mk = tokenyard::megakernel;

/// A place in memory that tasks reach. Python moves it about and never looks into it.
struct Piece {
  std::byte* address;
  size_t bytes;
  std::shared_ptr<mk::TensorMemory> owner;

  Piece at(size_t offset) const {
    if (offset > bytes)
      throw InvalidArgument("offset", fmt::format("at most {}", bytes), fmt::format("{}", offset));
    return {address + offset, bytes - offset, owner};
  }
};

using HostBytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// The memory of one rank; lives as long as a piece of it, or this.
class Memory {
 public:
  explicit Memory(const WorldHandle& world)
      : world_(world.get()),
        memory_(shared_and_destroyed_unlocked(std::make_unique<mk::TensorMemory>(*world_))) {}

  Piece local(size_t bytes) {
    nb::gil_scoped_release unlocked;
    return {static_cast<std::byte*>(memory_->local(bytes)), bytes, memory_};
  }
  /// Memory of the host that tasks reach, too, and an array of it, which keeps it alive.
  std::pair<Piece, HostBytes> visible(size_t bytes) {
    const Piece piece = [&] {
      nb::gil_scoped_release unlocked;
      return Piece{static_cast<std::byte*>(memory_->visible(bytes)), bytes, memory_};
    }();
    const nb::capsule owner(new std::shared_ptr(memory_), [](void* shared) noexcept {
      delete static_cast<std::shared_ptr<mk::TensorMemory>*>(shared);
    });
    return {piece, HostBytes(piece.address, {bytes}, owner)};
  }
  std::vector<Piece> shared(size_t bytes) {
    nb::gil_scoped_release unlocked;
    std::vector<Piece> pieces;
    for (void* const piece : memory_->shared(bytes))
      pieces.push_back({static_cast<std::byte*>(piece), bytes, memory_});
    return pieces;
  }
  void write(const Piece& to, const nb::bytes& from) {
    check(to, from.size());
    const char* const begin = from.c_str();
    const size_t bytes = from.size();
    nb::gil_scoped_release unlocked;
    memory_->write(to.address, begin, bytes);
  }
  nb::bytes read(const Piece& from, size_t bytes) {
    check(from, bytes);
    std::string to(bytes, '\0');
    {
      nb::gil_scoped_release unlocked;
      memory_->read(to.data(), from.address, bytes);
    }
    return nb::bytes(to.data(), to.size());
  }

  const std::shared_ptr<mk::TensorMemory>& native() const { return memory_; }
  const World& world() const { return *world_; }

 private:
  static void check(const Piece& piece, size_t bytes) {
    if (bytes > piece.bytes)
      throw InvalidArgument("bytes", fmt::format("at most the piece's {}", piece.bytes),
                            fmt::format("{}", bytes));
  }

  std::shared_ptr<World> world_;  // Outlives its memory.
  std::shared_ptr<mk::TensorMemory> memory_;
};

}  // namespace tokenyard::python
