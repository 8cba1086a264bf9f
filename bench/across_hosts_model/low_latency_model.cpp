#include "bench/across_hosts_model/low_latency_model.hpp"

#include <fmt/format.h>

#include <cstring>

#include "bench/across_hosts_model/modelled_world.hpp"
#include "expert_parallel/low_latency/kernels/combine.hpp"
#include "expert_parallel/low_latency/kernels/dispatch.hpp"
#include "expert_parallel/low_latency/kernels/messages.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/low_latency.hpp"

namespace tokenyard::bench {

namespace {

namespace kernels = low_latency;

constexpr uint32_t kPieceBytes = 16;
constexpr uint16_t kOne = 0x3f80;  ///< BF16

template <class Params>
const Params& params_of(const Launched& launched) {
  return *reinterpret_cast<const Params*>(launched.params.data());
}

class LowLatencyModel {
 public:
  explicit LowLatencyModel(const LowLatencyShape& shape)
      : shape_(shape),
        // The windows of many ranks fill this machine's memory.
        hidden_(shape.routed.ranks() > 32 ? 256 : 512),
        world_(shape.routed.hosts, shape.routed.locals, arena_bytes(),
               [this](std::vector<std::vector<Launched>>& launches) { run(launches); }) {}

  LowLatencyTimes measure() {
    std::vector<std::vector<int64_t>> ids;
    for (uint32_t rank = 0; rank < routed().ranks(); ++rank)
      ids.push_back(choices_of(routed(), rank));
    world_.each_rank([&](World& world) { exchange(world, ids); });
    return times_;
  }

 private:
  const RoutedShape& routed() const { return shape_.routed; }
  uint64_t slots() const { return uint64_t{routed().ranks()} * routed().tokens; }

  /// Windows, results of batches and their y; most of it is never touched.
  size_t arena_bytes() const {
    const size_t rows = slots() * hidden_ * 2;
    return 16 * rows + 12 * rows * routed().experts_per_rank() + (size_t{64} << 20);
  }

  void exchange(World& world, const std::vector<std::vector<int64_t>>& ids) {
    const uint32_t rank = world.rank(), tokens = routed().tokens, topk = routed().topk;
    const uint64_t experts = routed().experts_per_rank();
    Accelerator& accelerator = accelerator_of(world);
    LowLatency exchange(world, {.experts = routed().experts,
                                .hidden = hidden_,
                                .topk = topk,
                                .tokens_max = tokens,
                                .sms = shape_.sms,
                                .bf16_rows = false});
    const auto x = allocated(accelerator, size_t{tokens} * hidden_ * 2);
    std::fill_n(static_cast<uint16_t*>(x.get()), size_t{tokens} * hidden_, kOne);
    const auto indices = allocated(accelerator, ids[rank].size() * sizeof(int64_t));
    std::memcpy(indices.get(), ids[rank].data(), ids[rank].size() * sizeof(int64_t));
    const auto weights = allocated(accelerator, ids[rank].size() * sizeof(float));
    std::fill_n(static_cast<float*>(weights.get()), ids[rank].size(), 1.0f);
    const LowLatencyReceived received =
        exchange.dispatch({.x = {x.get(), DataType::bfloat16, {tokens, hidden_}},
                           .topk_idx = {indices.get(), DataType::int64, {tokens, topk}},
                           .topk_weights = {weights.get(), DataType::float32, {tokens, topk}}});
    world_.calls().meet();
    check_counts(rank, ids, received.counts.as<int32_t>());
    const TensorView y = exchange.combine_buffer(received.handle);
    for (uint64_t expert = 0; expert < experts; ++expert)
      std::fill_n(y.as<uint16_t>() + expert * slots() * hidden_,
                  size_t{hidden_} * received.counts.as<int32_t>()[expert], kOne);
    const auto out = allocated(accelerator, size_t{tokens} * hidden_ * 2);
    exchange.combine({.y = y, .out = {out.get(), DataType::bfloat16, {tokens, hidden_}}},
                     received.handle);
    world_.calls().meet();
    exchange.wait();
    if (!exchange.failed_ranks().empty()) throw InternalError("a rank was masked in the model");
    check_sums(static_cast<const uint16_t*>(out.get()));
    world.barrier("checked");
    exchange.close();
  }

  void check_counts(uint32_t rank, const std::vector<std::vector<int64_t>>& ids,
                    const int32_t* counts) const {
    std::vector<int32_t> expected(routed().experts_per_rank(), 0);
    for (const auto& of_rank : ids)
      for (const int64_t id : of_rank)
        if (static_cast<uint64_t>(id) / expected.size() == rank)
          ++expected[static_cast<uint64_t>(id) % expected.size()];
    for (size_t expert = 0; expert < expected.size(); ++expert)
      if (counts[expert] != expected[expert])
        throw InternalError(fmt::format("expert {} of rank {} has {} rows, not {}", expert, rank,
                                        counts[expert], expected[expert]));
  }

  /// All rows are ones, and so are all weights.
  void check_sums(const uint16_t* out) const {
    const float sum = static_cast<float>(routed().topk);
    uint32_t bits = 0;
    std::memcpy(&bits, &sum, 4);
    for (size_t i = 0; i < size_t{routed().tokens} * hidden_; ++i)
      if (out[i] != bits >> 16) throw InternalError(fmt::format("sum {} is wrong", i));
  }

  /// Runs a dispatch or a combine of all ranks in virtual time.
  void run(const std::vector<std::vector<Launched>>& launches) {
    CallFacts facts;
    bool combines = false;
    for (const Launched& launched : launches[0]) {
      combines |= launched.kernel == &kernels::combine_kernel.entry;
      if (launched.kernel != &kernels::messages_kernel.entry) continue;
      const auto& params = params_of<kernels::MessagesParams>(launched);
      if (params.channel != kernels::Channel::weights) facts.lengths = lengths_of(params);
    }
    for (uint32_t rank = 0; rank < launches.size(); ++rank)
      facts.pieces.push_back(pieces_of(rank, windows_of(launches[rank])));
    const std::vector<Time> ended = world_.machine().run(launches, facts);
    double most = 0;
    Time last = 0;
    for (const Time end : ended) last = std::max(last, end);
    for (uint32_t rank = 0; rank < launches.size(); ++rank)
      most = std::max({most, world_.wire().bytes_out(rank), world_.wire().bytes_in(rank)});
    (combines ? times_.combine : times_.dispatch) = {
        .us = static_cast<double>(last) * 1e-6,
        .wire_us = static_cast<double>(world_.costs().on_link(most)) * 1e-6};
    for (const Launched& launched : launches[0])
      times_.sms = std::max(times_.sms, launched.shape.blocks);
  }

  Lengths lengths_of(const kernels::MessagesParams& params) const {
    const bool rows = params.channel == kernels::Channel::rows;
    const kernels::RowLayout full(shape_.hidden, params.row.format());
    const auto pieces = [](const kernels::RowLayout& row) {
      return row.data_pieces() + (row.is_fp8() ? row.units() : 0);
    };
    const uint32_t in_memory = rows ? pieces(params.row) : params.sums.bf16_pieces;
    const uint32_t in_full =
        rows ? pieces(full) : kernels::SumsLayout::of(shape_.hidden).bf16_pieces;
    const auto turns = [](uint32_t count) { return (count + 31) / 32; };
    const kernels::MessageLayout& layout = params.paths.layout;
    Lengths lengths;
    lengths.row = in_memory * kPieceBytes;
    lengths.full_row = in_full * kPieceBytes;
    lengths.head =
        static_cast<uint32_t>(rows ? layout.rows_at(params.publishes) : layout.sums_at());
    lengths.pieces = static_cast<double>(in_full) / in_memory;
    lengths.turns = static_cast<double>(turns(in_full)) / turns(in_memory);
    return lengths;
  }

  static const kernels::Windows& windows_of(const std::vector<Launched>& launches) {
    for (const Launched& launched : launches)
      if (launched.kernel == &kernels::dispatch_kernel.entry)
        return params_of<kernels::DispatchParams>(launched).call.windows;
    for (const Launched& launched : launches)
      if (launched.kernel == &kernels::messages_kernel.entry)
        return params_of<kernels::MessagesParams>(launched).call.windows;
    throw InternalError("a call without kernels");
  }

  /// Staged rows and sums, in windows of this host and in mirrors of the others'.
  PieceRanges pieces_of(uint32_t rank, const kernels::Windows& windows) const {
    PieceRanges ranges;
    for (uint32_t peer = 0; peer < routed().ranks(); ++peer) {
      const std::byte* const window = windows.peers.of(peer).address();
      if (peer / routed().locals == rank / routed().locals) {
        ranges.emplace_back(window, window + windows.layout.staging_bytes());
        continue;
      }
      constexpr uint32_t kStaged = 4;  // Rows and sums, of both parities.
      for (uint32_t i = 0; i < kStaged; ++i) {
        const auto range = windows.layout.written_by(rank)[i];
        ranges.emplace_back(window + range.begin, window + range.begin + range.bytes);
      }
    }
    std::ranges::sort(ranges);
    return ranges;
  }

  const LowLatencyShape shape_;
  const uint32_t hidden_;
  LowLatencyTimes times_;
  ModelledWorld world_;
};

}  // namespace

LowLatencyTimes model_low_latency(const LowLatencyShape& shape) {
  return LowLatencyModel(shape).measure();
}

}  // namespace tokenyard::bench
