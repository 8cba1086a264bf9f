/// A warp that moves rows of a dispatch: it holds one or two slots in shared memory, each built
/// from a token or loaded from a ring, and stores them to stages, or their parts to results of this
/// host. With two, it loads one while the other's stores read it. Many warps of one slot each keep
/// a multiprocessor busier than few with rings (H200, spike: 77 against 64 GB/s on 4), so two are
/// for rows of which so many fit.
#pragma once

#include "expert_parallel/internode/kernels/coordinate_kernel.hpp"
#include "expert_parallel/internode/kernels/count_tokens_kernel.hpp"

namespace tokenyard::internode {

/// Where a rank of this host wants its rows: as its ready words say. A lane per rank holds one, so
/// that no slot's way leads through tables: while warps poll, nothing of those stays in the cache.
struct Destination {
  uint32_t rank = 0;
  uint32_t places = 0;           ///< rows that its memory is laid out for
  Peer<std::byte> rows, beside;  ///< `beside`: begins what lies beside rows
  bool watches = false;          ///< it is told of each source whose rows are in place

  /// Called by all lanes once the counts are known.
  TOKENYARD_DEVICE static Destination mine(const Dispatch& dispatch) {
    using throughput::ReadyWord;
    const RailCall& call = dispatch.call;
    if (warp::lane() >= dispatch.hosts().locals) return {};
    const uint32_t rank = dispatch.hosts().local(warp::lane());
    const auto word = [&](uint32_t number) {
      // Relaxed: the block that made the counts known has acquired it.
      return load<Order::relaxed, Scope::sys>(
                 call.rails.word<Stamped>(call.params.rank,
                                          call.rails.layout.ready_word(rank, number)))
          .value;
    };
    const auto read = [&](ReadyWord of) { return word(static_cast<uint32_t>(of)); };
    const uint32_t named = read(ReadyWord::places);
    const uint32_t places = named != 0 ? named : dispatch.input().table.rows_on()[rank];
    const Peer<std::byte> arena = call.params.arenas.of(rank);
    const auto at = [&](ReadyWord offset, size_t before) {
      return arena + (static_cast<std::ptrdiff_t>(size_t{read(offset)} * throughput::kOffsetUnit) -
                      static_cast<std::ptrdiff_t>(before));
    };
    return {.rank = rank,
            .places = places,
            .rows = at(ReadyWord::rows, 0),
            .beside = at(ReadyWord::beside, dispatch.input().received(places).beside_bytes()),
            .watches = word(kWatches) != 0};
  }
  TOKENYARD_DEVICE Destination of(uint32_t place) const {
    return {.rank = warp::shuffle(rank, place),
            .places = warp::shuffle(places, place),
            .rows = address_of_lane(rows, place),
            .beside = address_of_lane(beside, place)};
  }
};

class Mover {
 public:
  TOKENYARD_DEVICE explicit Mover(const Dispatch& dispatch)
      : dispatch_(dispatch),
        input_(dispatch.input()),
        slot_(dispatch.params.rails.slot),
        held_max_(dispatch.params.held),
        full_(dispatch.call.shared.full + dispatch.call.mover() * kHeldMax),
        stages_(dispatch.tail.stages(dispatch.call.mover())) {}

  // A slot is begun, then taken, then let go; they are taken in the order of their beginnings. All
  // lanes call these, alike, unless said otherwise.

  /// Returns whether another load may begin, once what was taken last is let go.
  TOKENYARD_DEVICE bool may_begin() const { return begun_ - taken_ < held_max_; }
  TOKENYARD_DEVICE bool holds_two() const { return held_max_ > 1; }
  /// Begins to load the row of a token of this rank.
  TOKENYARD_DEVICE void begin_token(uint32_t token) {
    begin_load(input_.x + size_t{token} * input_.row_bytes, input_.row_bytes);
  }
  /// Begins to load a slot of a ring.
  TOKENYARD_DEVICE void begin_slot(const std::byte* from) { begin_load(from, slot_.bytes()); }

  /// Takes the slot of a token, whose row's load has begun, and writes what travels with the row.
  TOKENYARD_DEVICE void take_token(uint32_t token) {
    stage_ = next_stage();
    const auto* const scales = reinterpret_cast<const uint32_t*>(input_.scales);
    auto* const scales_here = at<uint32_t>(slot_.scales_at());
    for (uint32_t word = warp::lane(); word < slot_.scale_words; word += kWarpLanes)
      scales_here[word] = load_cached(scales + size_t{token} * slot_.scale_words + word);
    if (slot_.choices != 0) write_choices(token);
    take();
    // Before copies of what the lanes have written.
    fence_async_shared();
    warp::sync();
  }
  /// Takes the next slot, once it is loaded: the load ends in any case.
  TOKENYARD_DEVICE void take() {
    stage_ = next_stage();
    Completion& full = full_[taken_ % held_max_];
    const uint32_t round = taken_ / held_max_;
    Awaited what{.phase = static_cast<uint32_t>(Phase::load),
                 .rank = input_.call.rank,
                 .expected = taken_ + 1,
                 .seen = taken_};
    wait_until(
        what, [&] { return full.done(round & 1); }, [] { return true; });
    ++taken_;
    warp::sync();
  }
  /// Takes all that was begun, so that no copy is under way when the block ends.
  TOKENYARD_DEVICE void take_all() {
    while (begun_ != taken_) take();
  }

  /// Stores the slot that was taken last as a copy of this lane. Await it by `complete`.
  TOKENYARD_DEVICE void store_to(std::byte* to) const { bulk::store(to, stage_, slot_.bytes()); }

  /// Hands the slot's row to the ranks of this host. Called by all lanes; `row`: on the rank of
  /// this lane, or -1.
  TOKENYARD_DEVICE void deliver(int32_t row, const Destination& mine) const {
    if (row >= 0)
      bulk::store(mine.rows + static_cast<std::ptrdiff_t>(size_t(row) * input_.row_bytes), stage_,
                  input_.row_bytes);
    for (uint32_t left = warp::ballot(row >= 0); left != 0; left &= left - 1) {
      const uint32_t place = first_bit(left);
      deliver_beside(mine.of(place), static_cast<uint32_t>(warp::shuffle(row, place)));
    }
  }

  /// Lets the stages of all slots that were taken be written again. Called by all lanes.
  TOKENYARD_DEVICE void let_go() const {
    bulk::commit();
    bulk::wait_read<0>();
    // Before copies into what the lanes have read.
    fence_async_shared();
    warp::sync();
  }
  /// Waits until all copies of this lane are complete.
  TOKENYARD_DEVICE void complete() const {
    bulk::commit();
    bulk::wait<0>();
  }

  /// Returns the number in the slot of its token among its source's rows for a rank, or -1.
  TOKENYARD_DEVICE int32_t number_on(uint32_t rank) const {
    const auto* const ids = at<int32_t>(slot_.ids_at());
    for (uint32_t choice = 0; choice < slot_.choices; ++choice)
      if (ids[choice] >= 0 && input_.partition.rank_of(static_cast<uint32_t>(ids[choice])) == rank)
        return at<int32_t>(slot_.numbers_at())[choice];
    return -1;
  }

 private:
  template <class T>
  TOKENYARD_DEVICE T* at(uint32_t offset) const {
    return reinterpret_cast<T*>(stage_ + offset);
  }

  TOKENYARD_DEVICE std::byte* next_stage() const {
    return stages_ + taken_ % held_max_ * dispatch_.tail.stage_bytes;
  }
  TOKENYARD_DEVICE void begin_load(const std::byte* from, uint32_t bytes) {
    const uint32_t which = begun_ % held_max_;
    ++begun_;
    if (!warp::elect()) return;
    full_[which].arrive_expect(bytes);
    bulk::load(stages_ + which * dispatch_.tail.stage_bytes, from, bytes, full_[which]);
  }

  TOKENYARD_DEVICE void write_choices(uint32_t token) {
    const RailRoute& route = dispatch_.params.route;
    if (warp::lane() == 0) *at<uint32_t>(slot_.token_at()) = token;
    for (uint32_t choice = warp::lane(); choice < slot_.choices; choice += kWarpLanes) {
      const int64_t id = load_id(input_, token, choice);
      const bool valid = dispatch_.goes(id);
      at<int32_t>(slot_.ids_at())[choice] = valid ? static_cast<int32_t>(id) : -1;
      at<int32_t>(slot_.numbers_at())[choice] =
          valid ? route.place(token, input_.partition.rank_of(static_cast<uint32_t>(id))) : -1;
      at<float>(slot_.weights_at())[choice] =
          input_.topk_weights == nullptr
              ? 1.0f
              : load_cached(input_.topk_weights + size_t{token} * input_.topk + choice);
    }
  }

  /// Stores what lies beside a row. Weak: the release of `finished` publishes it.
  TOKENYARD_DEVICE void deliver_beside(const Destination& there, uint32_t row) const {
    const throughput::ReceivedLayout layout = input_.received(there.places);
    const auto put = [](Peer<std::byte> base, size_t offset, auto value) {
      store<Order::weak, Scope::sys>(
          (base + static_cast<std::ptrdiff_t>(offset)).template as<decltype(value)>(), value);
    };
    for (uint32_t word = warp::lane(); word < slot_.scale_words; word += kWarpLanes)
      put(there.rows, layout.scales_at() + layout.scale_index(row, word) * sizeof(uint32_t),
          at<uint32_t>(slot_.scales_at())[word]);
    if (slot_.choices == 0) return;
    for (uint32_t choice = warp::lane(); choice < slot_.choices; choice += kWarpLanes) {
      const int32_t id = at<int32_t>(slot_.ids_at())[choice];
      const bool here =
          id >= 0 && input_.partition.rank_of(static_cast<uint32_t>(id)) == there.rank;
      const size_t index = (size_t{row} * slot_.choices + choice) * sizeof(int32_t);
      put(there.beside, layout.ids_at() + index,
          here ? id - static_cast<int32_t>(input_.partition.first_of(there.rank)) : -1);
      put(there.beside, layout.weights_at() + index,
          here ? at<float>(slot_.weights_at())[choice] : 0.0f);
    }
    if (warp::lane() == 0)
      put(there.beside, layout.sources_at() + row * sizeof(int32_t),
          static_cast<int32_t>(*at<uint32_t>(slot_.token_at())));
  }

  const Dispatch& dispatch_;
  const throughput::DispatchParams& input_;
  const SlotLayout slot_;
  const uint32_t held_max_;
  Completion* const full_;          // [held_max_]
  std::byte* const stages_;         // [held_max_]
  std::byte* stage_ = nullptr;      // Of the slot that was taken last.
  uint32_t begun_ = 0, taken_ = 0;  // Loads.
};

}  // namespace tokenyard::internode
