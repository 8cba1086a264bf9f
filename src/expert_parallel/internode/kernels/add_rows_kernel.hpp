/// A warp that adds up rows: their parts come by bulk copies into shared memory, several at once,
/// so that a sum takes one latency of a peer's memory and not one per part (model, 4 hosts, 128
/// tokens: 229 us when lanes loaded into registers, see docs/decisions/across_hosts.md).
#pragma once

#include "device/unroll.hpp"
#include "expert_parallel/internode/kernels/combine.hpp"
#include "expert_parallel/internode/kernels/rail_call_kernel.hpp"
#include "expert_parallel/throughput/kernels/piece_sums_kernel.hpp"

namespace tokenyard::internode {

/// Pieces of a row, in sixteen bytes each.
template <class OfPiece>
struct RowPiece {
  using Piece = OfPiece;
  static constexpr uint32_t kVectors = 1;  ///< of sixteen bytes, per piece

  TOKENYARD_DEVICE static void add(const Bytes16* from, throughput::PieceSums<Piece>& sums) {
    sums.add(*from);
  }
  TOKENYARD_DEVICE static void store(Bytes16* to, const throughput::PieceSums<Piece>& sums) {
    store_vector(to, sums.rounded());
  }
};

/// Pieces that were summed, as fp32: two vectors for one of narrower elements.
template <class OfPiece>
struct WidePiece {
  using Piece = OfPiece;
  using Vector = throughput::Fp32Piece;
  static constexpr uint32_t kVectors = Piece::kValues / Vector::kValues;

  TOKENYARD_DEVICE static void add(const Bytes16* from, throughput::PieceSums<Piece>& sums) {
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < Piece::kValues; ++i)
      sums.sums[i] += Vector::value(from[i / Vector::kValues], i % Vector::kValues);
  }
  TOKENYARD_DEVICE static void store(Bytes16* to, const throughput::PieceSums<Piece>& sums) {
    TOKENYARD_UNROLL
    for (uint32_t vector = 0; vector < kVectors; ++vector) {
      Bytes16 values;
      for (uint32_t word = 0; word < Vector::kValues; ++word)
        values.word[word] = Vector::rounded(sums.sums + vector * Vector::kValues, word);
      store_vector(to + vector, values);
    }
  }
};

/// Initializes what loads complete on. Called by the whole block, which then synchronizes.
TOKENYARD_DEVICE void ready_parts(const CombineTail& tail) {
  for (uint32_t i = thread::index(); i < tail.movers * tail.parts; i += block::threads())
    tail.full(0)[i].init(1);
  fence_async_shared();
}

/// Loads that lanes of a warp begin together: a thread needs 0.14 us to begin one (H200).
inline constexpr uint32_t kLoadsAtOnce = 4;

class RowAdder {
 public:
  TOKENYARD_DEVICE RowAdder(const CombineTail& tail, uint32_t mover, uint32_t row_bytes,
                            uint32_t rank)
      : memory_(tail.part(mover, 0)),
        part_bytes_(tail.part_bytes),
        place_bytes_(tail.place_bytes),
        at_once_(tail.parts),
        full_(tail.full(mover)),
        addends_(tail.addends(mover)),
        row_bytes_(row_bytes),
        rank_(rank) {}

  /// The rows of the next sum, in order, which lanes write before they call `add`.
  TOKENYARD_DEVICE Addend* addends() const { return addends_; }

  /// Adds up `count` rows into `out`, whose pieces are `To`; those of partial sums are `Partial`.
  /// Rounds at most once. Called by all lanes, each of which has acquired the addends that it
  /// wrote.
  template <class Partial, class To>
  TOKENYARD_DEVICE void add(uint32_t count, Bytes16* out) {
    using Row = RowPiece<typename To::Piece>;
    warp::sync();
    // Orders what the addends' writers stored, which the warp has acquired, before the copies.
    fence_async();
    const uint32_t parts = (row_bytes_ + part_bytes_ - 1) / part_bytes_, loads = parts * count;
    uint32_t next = 0, read = 0;
    begin_loads<Partial>(place_, next, std::min(loads, uint32_t{at_once_}), count);
    for (uint32_t part = 0; part < parts; ++part) {
      throughput::PieceSums<typename To::Piece> sums[kPiecesOfPart];
      TOKENYARD_UNROLL
      for (auto& sum : sums) sum.clear();
      const uint32_t pieces = bytes_of(part) / uint32_t{sizeof(Bytes16)};
      for (uint32_t addend = 0; addend < count; ++addend) {
        const auto* const values = reinterpret_cast<const Bytes16*>(await());
        const auto add_as = [&](auto from) {
          using From = decltype(from);
          TOKENYARD_UNROLL
          for (uint32_t i = 0; i < kPiecesOfPart; ++i)
            if (const uint32_t piece = i * kWarpLanes + warp::lane(); piece < pieces)
              From::add(values + piece * From::kVectors, sums[i]);
        };
        if (Partial::kVectors > 1 && addends_[addend].is_partial)
          add_as(Partial{});
        else
          add_as(Row{});
        if (++read < std::min(at_once_, uint32_t{kLoadsAtOnce}) || next == loads) continue;
        // Before copies into what the lanes have read.
        fence_async_shared();
        warp::sync();
        // Into the places that were read last.
        begin_loads<Partial>(place_ + at_once_ - read, next, std::min(read, loads - next), count);
        read = 0;
      }
      Bytes16* const to = out + part * (part_bytes_ / uint32_t{sizeof(Bytes16)}) * To::kVectors;
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kPiecesOfPart; ++i)
        if (const uint32_t piece = i * kWarpLanes + warp::lane(); piece < pieces)
          To::store(to + piece * To::kVectors, sums[i]);
    }
    // Before the next sum's copies.
    fence_async_shared();
  }

 private:
  /// Returns the bytes of a part of a row, those of the last one being what is left.
  TOKENYARD_DEVICE uint32_t bytes_of(uint32_t part) const {
    return std::min(uint32_t{part_bytes_}, row_bytes_ - part * part_bytes_);
  }
  /// Begins the next loads of a sum, of which there are `more`: part by part, addend after addend,
  /// a lane each.
  template <class Partial>
  TOKENYARD_DEVICE void begin_loads(uint32_t first_place, uint32_t& next, uint32_t more,
                                    uint32_t addends) {
    uint32_t place = first_place < at_once_ ? first_place : first_place - at_once_;
    place += warp::lane();
    if (warp::lane() < more)
      load<Partial>(next + warp::lane(), place < at_once_ ? place : place - at_once_, addends);
    next += more;
  }
  template <class Partial>
  TOKENYARD_DEVICE void load(uint32_t number, uint32_t place, uint32_t addends) {
    const uint32_t part = number / addends;
    const Addend& addend = addends_[number - part * addends];
    const uint32_t vectors = addend.is_partial ? Partial::kVectors : 1;
    const uint32_t bytes = vectors * bytes_of(part);
    full_[place].arrive_expect(bytes);
    bulk::load(memory_ + place * place_bytes_,
               addend.row + static_cast<std::ptrdiff_t>(size_t{part} * part_bytes_ * vectors),
               bytes, full_[place]);
  }
  /// Waits for the next load: it ends in any case. Returns its bytes.
  TOKENYARD_DEVICE const std::byte* await() {
    const uint32_t place = place_;
    Awaited what{.phase = static_cast<uint32_t>(Phase::load),
                 .rank = rank_,
                 .expected = round_ + 1,
                 .seen = round_};
    wait_until(
        what, [&] { return full_[place].done(round_ & 1); }, [] { return true; });
    // Counted, and not divided: this happens once per part.
    if (++place_ == at_once_) {
      place_ = 0;
      ++round_;
    }
    return memory_ + place * place_bytes_;
  }

  std::byte* const memory_;
  const uint32_t part_bytes_, place_bytes_, at_once_;
  Completion* const full_;
  Addend* const addends_;
  const uint32_t row_bytes_, rank_;
  uint32_t place_ = 0, round_ = 0;  // Of the load that is awaited next.
};

}  // namespace tokenyard::internode
