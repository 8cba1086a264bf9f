/// A warp that moves rows of a dispatch: it holds one slot in shared memory, built from a token or
/// loaded from a ring, and stores it to stages, or its parts to results of this host. Many warps of
/// one slot each keep a multiprocessor busier than few with rings (H200, spike: 77 against 64 GB/s
/// on 4).
#pragma once

#include "expert_parallel/internode/kernels/coordinate_kernel.hpp"
#include "expert_parallel/internode/kernels/count_tokens_kernel.hpp"

namespace tokenyard::internode {

/// Where a rank of this host wants its rows: as its ready words say. A lane per rank holds one.
struct Destination {
  uint32_t rows = 0, beside = 0;  ///< in kOffsetUnit, as ReadyWord
  uint32_t places = 0;            ///< rows that its memory is laid out for
  bool watches = false;           ///< it is told of each source whose rows are in place

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
    return {.rows = read(ReadyWord::rows),
            .beside = read(ReadyWord::beside),
            .places = named != 0 ? named : dispatch.input().table.rows_on()[rank],
            .watches = word(kWatches) != 0};
  }
  TOKENYARD_DEVICE Destination of(uint32_t place) const {
    return {.rows = warp::shuffle(rows, place),
            .beside = warp::shuffle(beside, place),
            .places = warp::shuffle(places, place)};
  }
};

class Mover {
 public:
  TOKENYARD_DEVICE explicit Mover(const Dispatch& dispatch)
      : dispatch_(dispatch),
        input_(dispatch.input()),
        slot_(dispatch.params.rails.slot),
        full_(dispatch.call.shared.full[dispatch.call.mover()]),
        stage_(dispatch.tail.stage(dispatch.call.mover())) {}

  TOKENYARD_DEVICE const std::byte* stage() const { return stage_; }

  /// Builds the slot of a token of this rank. Called by all lanes.
  TOKENYARD_DEVICE void build(uint32_t token) {
    begin_load(input_.x + size_t{token} * input_.row_bytes, input_.row_bytes);
    const auto* const scales = reinterpret_cast<const uint32_t*>(input_.scales);
    auto* const scales_here = at<uint32_t>(slot_.scales_at());
    for (uint32_t word = warp::lane(); word < slot_.scale_words; word += kWarpLanes)
      scales_here[word] = load_cached(scales + size_t{token} * slot_.scale_words + word);
    if (slot_.choices != 0) write_choices(token);
    end_load();
    // Before copies of what the lanes have written.
    fence_async_shared();
    warp::sync();
  }

  /// Loads a slot of a ring. Called by all lanes.
  TOKENYARD_DEVICE void load(const std::byte* from) {
    begin_load(from, slot_.bytes());
    end_load();
  }

  /// Stores the slot, or its first bytes, as a copy of this lane. Await it by `complete`.
  TOKENYARD_DEVICE void store_to(std::byte* to) const { bulk::store(to, stage_, slot_.bytes()); }

  /// Hands the slot's row to the ranks of this host. Called by all lanes; `row`: on the rank of
  /// this lane, or -1.
  TOKENYARD_DEVICE void deliver(int32_t row, const Destination& mine) const {
    if (row >= 0)
      bulk::store(
          rows_on(warp::lane(), mine) + static_cast<std::ptrdiff_t>(size_t(row) * input_.row_bytes),
          stage_, input_.row_bytes);
    for (uint32_t place = 0; place < dispatch_.hosts().locals; ++place) {
      const int32_t row_there = warp::shuffle(row, place);
      const Destination there = mine.of(place);
      if (row_there >= 0) deliver_beside(place, there, static_cast<uint32_t>(row_there));
    }
  }

  /// Lets the stage be written again. Called by all lanes.
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

  TOKENYARD_DEVICE void begin_load(const std::byte* from, uint32_t bytes) {
    if (!warp::elect()) return;
    full_.arrive_expect(bytes);
    bulk::load(stage_, from, bytes, full_);
  }
  /// Waits for the load: it ends in any case.
  TOKENYARD_DEVICE void end_load() {
    Awaited what{.phase = static_cast<uint32_t>(Phase::load),
                 .rank = input_.call.rank,
                 .expected = loads_ + 1,
                 .seen = loads_};
    wait_until(
        what, [&] { return full_.done(loads_ & 1); }, [] { return true; });
    ++loads_;
    warp::sync();
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

  TOKENYARD_DEVICE Peer<std::byte> rows_on(uint32_t place, const Destination& there) const {
    return input_.call.arenas.of(dispatch_.hosts().local(place)) +
           static_cast<std::ptrdiff_t>(size_t{there.rows} * throughput::kOffsetUnit);
  }

  /// Stores what lies beside a row. Weak: the release of `finished` publishes it.
  TOKENYARD_DEVICE void deliver_beside(uint32_t place, const Destination& there,
                                       uint32_t row) const {
    const uint32_t rank = dispatch_.hosts().local(place);
    const throughput::ReceivedLayout layout = input_.received(there.places);
    const Peer<std::byte> rows = rows_on(place, there);
    const auto put = [](Peer<std::byte> base, size_t offset, auto value) {
      store<Order::weak, Scope::sys>(
          (base + static_cast<std::ptrdiff_t>(offset)).template as<decltype(value)>(), value);
    };
    for (uint32_t word = warp::lane(); word < slot_.scale_words; word += kWarpLanes)
      put(rows, layout.scales_at() + layout.scale_index(row, word) * sizeof(uint32_t),
          at<uint32_t>(slot_.scales_at())[word]);
    if (slot_.choices == 0) return;
    const Peer<std::byte> beside =
        input_.call.arenas.of(rank) +
        static_cast<std::ptrdiff_t>(size_t{there.beside} * throughput::kOffsetUnit -
                                    layout.beside_bytes());
    for (uint32_t choice = warp::lane(); choice < slot_.choices; choice += kWarpLanes) {
      const int32_t id = at<int32_t>(slot_.ids_at())[choice];
      const bool here = id >= 0 && input_.partition.rank_of(static_cast<uint32_t>(id)) == rank;
      const size_t index = (size_t{row} * slot_.choices + choice) * sizeof(int32_t);
      put(beside, layout.ids_at() + index,
          here ? id - static_cast<int32_t>(input_.partition.first_of(rank)) : -1);
      put(beside, layout.weights_at() + index, here ? at<float>(slot_.weights_at())[choice] : 0.0f);
    }
    if (warp::lane() == 0)
      put(beside, layout.sources_at() + row * sizeof(int32_t),
          static_cast<int32_t>(*at<uint32_t>(slot_.token_at())));
  }

  const Dispatch& dispatch_;
  const throughput::DispatchParams& input_;
  const SlotLayout slot_;
  Completion& full_;
  std::byte* const stage_;
  uint32_t loads_ = 0;
};

}  // namespace tokenyard::internode
