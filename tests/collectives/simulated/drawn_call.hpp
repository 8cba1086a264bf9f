/// One operation of a program: kind, sizes and algorithm drawn alike on all ranks, the memory it
/// works on, and its expected results.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "collectives/engine/call.hpp"
#include "collectives/simulated/program.hpp"

namespace tokenyard::collectives::simulated {

enum class DrawnKind : uint8_t {
  all_reduce,
  all_reduce_coalesced,
  all_gather,
  all_gather_uneven,
  reduce_scatter,
  all_to_all,
  all_to_all_uneven,
  barrier,
  // Rooted kinds.
  reduce,
  broadcast,
  gather,
  scatter,
};

class DrawnCall {
 public:
  struct Place {
    Member self;
    uint32_t rank = 0;        ///< the process's rank in the group
    std::vector<Slot> slots;  ///< of the group, by rank
    GroupId group = 0;
    Sequence sequence = 0;
    bool rooted = false;  ///< rooted kinds may be drawn
  };

  struct Draw {
    DrawnKind kind = DrawnKind::barrier;
    size_t elements = 0;
    Algorithm algorithm = Algorithm::automatic;
    uint32_t root = 0;
  };

  DrawnCall(Place place, const View& view) : DrawnCall(place, view, draw_for(place)) {}
  /// The root is the drawn rank, or the next one that `view` contains.
  DrawnCall(Place place, const View& view, Draw draw)
      : place_(std::move(place)),
        kind_(draw.kind),
        elements_(draw.elements),
        algorithm_(draw.algorithm),
        root_(draw.root) {
    for (uint32_t tries = 0; tries < size() && !view.at(place_.slots[root_]); ++tries)
      root_ = (root_ + 1) % size();
    fill();
  }

  Call call() {
    Call call = {.signature = {.kind = operation_kind(),
                               .type = DataType::int64,
                               .op = ReduceOp::sum,
                               .algorithm = algorithm_,
                               .root = has_root() ? root_ : 0}};
    for (const Numbers& part : in_) call.in.push_back({part.data(), part.size(), DataType::int64});
    for (Numbers& part : out_) call.out.push_back({part.data(), part.size(), DataType::int64});
    call.signature.elements = total();
    if (kind_ != DrawnKind::barrier && call.signature.elements > 0) {
      call.signature.lengths =
          fingerprint(std::array<uint64_t, 2>{elements_, in_place() ? 0 : size()});
      call.bytes = total() * sizeof(int64_t);
    }
    return call;
  }

  /// The same operation through the public API.
  Work start(Group group) {
    std::vector<ConstTensorView> in;
    std::vector<TensorView> out;
    for (const Numbers& part : in_) in.push_back({part.data(), {part.size()}});
    for (Numbers& part : out_) out.push_back({part.data(), {part.size()}});
    switch (operation_kind()) {
      case OperationKind::all_reduce:
        return group.all_reduce(out, ReduceOp::sum);
      case OperationKind::all_gather:
        return group.all_gather(in[0], out);
      case OperationKind::reduce_scatter:
        return group.reduce_scatter(in, out[0], ReduceOp::sum);
      case OperationKind::all_to_all:
        return group.all_to_all(in, out);
      case OperationKind::reduce:
        return group.reduce(out[0], ReduceOp::sum, root_);
      case OperationKind::broadcast:
        return group.broadcast(out[0], root_);
      case OperationKind::gather:
        return group.gather(in[0], out, root_);
      case OperationKind::scatter:
        return group.scatter(in, out[0], root_);
      case OperationKind::barrier:
      case OperationKind::monitored_barrier:
      case OperationKind::close:
        break;
    }
    return group.barrier();
  }

  /// Counts the results that differ from what `members` contributed, and nonzero numbers in the
  /// parts of other ranks.
  size_t wrong(const View& members) const { return wrong(members, place_.slots); }
  /// For a group that has grown since: `slots` are its ranks.
  size_t wrong(const View& members, const std::vector<Slot>& slots) const {
    std::vector<Numbers> expected = blank_;
    for (uint32_t rank = 0; rank < slots.size(); ++rank) {
      const auto member = members.at(slots[rank]);
      if (member && (in_place() || rank < size())) add(*member, rank, expected);
    }
    size_t wrong = 0;
    const bool by_rank = out_.size() == size() && !in_place();
    for (size_t part = 0; part < out_.size(); ++part) {
      const bool lost = by_rank && size() > 1 && !members.at(place_.slots[part]);
      for (size_t i = 0; i < out_[part].size(); ++i)
        wrong += out_[part][i] != (lost ? 0 : expected[part][i]);
    }
    return wrong;
  }
  /// Counts the numbers of its input that differ from the caller's.
  size_t touched() const {
    const bool is_input = in_place() && (kind_ != DrawnKind::broadcast || place_.rank == root_);
    size_t touched = in_ != in_before_ ? 1 : 0;
    for (size_t part = 0; is_input && part < out_.size(); ++part)
      touched += out_[part] != out_before_[part];
    return touched;
  }

 private:
  using Numbers = std::vector<int64_t>;

  static Draw draw_for(const Place& place) {
    const uint64_t drawn =
        (place.group * 31 + place.sequence) * 0x9e3779b97f4a7c15u >> 24 & 0xffffff;
    const auto kind = static_cast<DrawnKind>(drawn % (place.rooted ? 12 : 8));
    return {.kind = kind,
            .elements = std::array<size_t, 4>{1, 7, 64, 300}[drawn / 12 % 4],
            .algorithm = algorithm_of(kind, drawn / 48),
            .root = static_cast<uint32_t>(drawn / 192 % place.slots.size())};
  }
  static Algorithm algorithm_of(DrawnKind kind, uint64_t drawn) {
    switch (kind) {
      case DrawnKind::all_reduce:
      case DrawnKind::all_reduce_coalesced:
        return std::array{Algorithm::automatic, Algorithm::ring, Algorithm::direct,
                          Algorithm::halving_doubling}[drawn % 4];
      case DrawnKind::all_gather:
      case DrawnKind::all_gather_uneven:
      case DrawnKind::reduce_scatter:
      case DrawnKind::reduce:
      case DrawnKind::broadcast:
        return drawn % 2 == 0 ? Algorithm::automatic : Algorithm::ring;
      default:
        return Algorithm::automatic;
    }
  }
  OperationKind operation_kind() const {
    switch (kind_) {
      case DrawnKind::all_reduce:
      case DrawnKind::all_reduce_coalesced:
        return OperationKind::all_reduce;
      case DrawnKind::all_gather:
      case DrawnKind::all_gather_uneven:
        return OperationKind::all_gather;
      case DrawnKind::reduce_scatter:
        return OperationKind::reduce_scatter;
      case DrawnKind::all_to_all:
      case DrawnKind::all_to_all_uneven:
        return OperationKind::all_to_all;
      case DrawnKind::barrier:
        return OperationKind::barrier;
      case DrawnKind::reduce:
        return OperationKind::reduce;
      case DrawnKind::broadcast:
        return OperationKind::broadcast;
      case DrawnKind::gather:
        return OperationKind::gather;
      case DrawnKind::scatter:
        return OperationKind::scatter;
    }
    return OperationKind::barrier;
  }

  uint32_t size() const { return static_cast<uint32_t>(place_.slots.size()); }
  bool has_root() const { return kind_ >= DrawnKind::reduce; }
  bool is_root() const { return place_.rank == root_; }
  bool in_place() const {
    return kind_ == DrawnKind::all_reduce || kind_ == DrawnKind::all_reduce_coalesced ||
           kind_ == DrawnKind::reduce || kind_ == DrawnKind::broadcast;
  }
  /// Length of the part from one rank to another.
  size_t length(uint32_t from, uint32_t to) const {
    if (kind_ == DrawnKind::all_gather_uneven) return (elements_ + 3 * from) % 65;
    if (kind_ == DrawnKind::all_to_all_uneven) return (elements_ + 3 * from + to) % 65;
    return elements_;
  }
  /// The same on all ranks; 0 if only pairs agree.
  size_t total() const {
    if (kind_ == DrawnKind::barrier || kind_ >= DrawnKind::gather ||
        kind_ == DrawnKind::all_to_all || kind_ == DrawnKind::all_to_all_uneven)
      return 0;
    if (kind_ == DrawnKind::all_reduce_coalesced) return 2 * elements_;
    if (in_place()) return elements_;
    size_t total = 0;
    for (uint32_t rank = 0; rank < size(); ++rank) total += length(rank, 0);
    return total;
  }
  Numbers brought(const Member& by, uint32_t from, uint32_t to) const {
    Numbers numbers(length(from, to));
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] =
          contribution(by, place_.group, place_.sequence) + static_cast<int64_t>(1000 * to + i);
    return numbers;
  }

  /// Fills inputs, and results as they are before any contribution.
  void fill() {
    const auto mine = [&](uint32_t to) { return brought(place_.self, place_.rank, to); };
    const auto empty_parts = [&](auto length_of, int64_t value) {
      for (uint32_t rank = 0; rank < size(); ++rank)
        out_.push_back(Numbers(length_of(rank), value));
    };
    switch (kind_) {
      case DrawnKind::all_reduce_coalesced:
        out_ = {mine(0), mine(1)};
        break;
      case DrawnKind::all_reduce:
      case DrawnKind::reduce:
      case DrawnKind::broadcast:
        out_ = {mine(0)};
        break;
      case DrawnKind::all_gather:
      case DrawnKind::all_gather_uneven:
      case DrawnKind::gather:
        in_ = {mine(0)};
        if (kind_ != DrawnKind::gather || is_root())
          empty_parts([&](uint32_t from) { return length(from, 0); }, -1);
        break;
      case DrawnKind::scatter:
      case DrawnKind::reduce_scatter:
        for (uint32_t to = 0; to < size() && (kind_ != DrawnKind::scatter || is_root()); ++to)
          in_.push_back(mine(to));
        out_ = {Numbers(elements_, -1)};
        break;
      case DrawnKind::all_to_all:
      case DrawnKind::all_to_all_uneven:
        for (uint32_t to = 0; to < size(); ++to) in_.push_back(mine(to));
        empty_parts([&](uint32_t from) { return length(from, place_.rank); }, -1);
        break;
      case DrawnKind::barrier:
        break;
    }
    in_before_ = in_;
    out_before_ = blank_ = out_;
    const bool adds_up = kind_ == DrawnKind::all_reduce || kind_ == DrawnKind::reduce_scatter ||
                         kind_ == DrawnKind::all_reduce_coalesced ||
                         (kind_ == DrawnKind::reduce && is_root());
    for (Numbers& part : blank_) {
      if (adds_up) std::fill(part.begin(), part.end(), 0);
    }
  }

  /// Applies a rank's contribution to this rank's results.
  void add(const Member& by, uint32_t from, std::vector<Numbers>& results) const {
    const auto sum = [&](size_t part, uint32_t to) {
      const Numbers numbers = brought(by, from, to);
      for (size_t i = 0; i < numbers.size(); ++i) results[part][i] += numbers[i];
    };
    switch (kind_) {
      case DrawnKind::all_reduce:
        return sum(0, 0);
      case DrawnKind::all_reduce_coalesced:
        sum(0, 0);
        return sum(1, 1);
      case DrawnKind::reduce:
        if (is_root()) sum(0, 0);
        return;
      case DrawnKind::reduce_scatter:
        return sum(0, place_.rank);
      case DrawnKind::broadcast:
        if (from == root_) results[0] = brought(by, from, 0);
        return;
      case DrawnKind::scatter:
        if (from == root_) results[0] = brought(by, from, place_.rank);
        return;
      case DrawnKind::all_gather:
      case DrawnKind::all_gather_uneven:
        results[from] = brought(by, from, 0);
        return;
      case DrawnKind::gather:
        if (is_root()) results[from] = brought(by, from, 0);
        return;
      case DrawnKind::all_to_all:
      case DrawnKind::all_to_all_uneven:
        results[from] = brought(by, from, place_.rank);
        return;
      case DrawnKind::barrier:
        return;
    }
  }

  const Place place_;
  const DrawnKind kind_;
  const size_t elements_;
  const Algorithm algorithm_;
  uint32_t root_;
  std::vector<Numbers> in_, out_, in_before_, out_before_, blank_;
};

}  // namespace tokenyard::collectives::simulated
