// Builds the tasks of each stage of a DenseDecoder.
#include <fmt/format.h>

#include <algorithm>

#include "decoder/dense_decoder.hpp"
#include "decoder/tasks/between_hosts.hpp"
#include "decoder/tasks/layer.hpp"
#include "decoder/tasks/logits.hpp"
#include "decoder/tasks/next_tokens.hpp"
#include "decoder/tasks/project_attention.hpp"
#include "decoder/tasks/send_best.hpp"

namespace tokenyard::megakernel {

template <class Sums>
Sums DenseDecoder::sums_to_add_to(uint32_t stage) const {
  Sums sums{};
  for (const uint32_t rank : near_)
    sums.of_rank[sums.count++] = Peer<uint64_t>(sums_[rank] + stage_words(stage));
  if (!far_.empty()) sums.of_rank[sums.count++] = Peer<uint64_t>(outgoing_ + stage_words(stage));
  return sums;
}

void DenseDecoder::declare_adds(TaskOptions& options, uint32_t stage, const Span& rows) const {
  for (const uint32_t rank : near_) {
    options.adds.push_back(rows_of_sums(stage, rows).of(rank));
    options.signals.push_back({after(stage), rank});
  }
  options.adds.push_back(broken_t_.all());
  if (far_.empty()) return;
  options.adds.push_back(
      outgoing_t_[stage].part(rows.begin * sizeof(uint64_t), rows.end * sizeof(uint64_t)));
  options.signals.push_back({outgoing_ready_[stage]});
}

std::vector<Region> DenseDecoder::everywhere(const Region& region) const {
  std::vector<Region> all;
  for (uint32_t rank = 0; rank < place_.ranks; ++rank) all.push_back(region.of(rank));
  return all;
}

template <template <class> class Type, class Fill>
void DenseDecoder::add_of_kind(Fill fill, TaskOptions options) {
  const auto add = [&]<class Kind>() {
    typename Type<Kind>::Args args{};
    fill(args);
    graph_.add<Type<Kind>>(args, std::move(options));
  };
  // Arguments are the same for any number of sequences.
  if (place_.ranks > 1)
    add.template operator()<Together<>>();
  else
    add.template operator()<Alone<>>();
}

std::vector<Signal> DenseDecoder::to_everybody(Event event) const {
  std::vector<Signal> all;
  for (uint32_t rank = 0; rank < place_.ranks; ++rank) all.push_back({event, rank});
  return all;
}

DenseDecoder::Span DenseDecoder::chunks_of(uint32_t block) const {
  return share(shape_.hidden / kChunk, block, blocks_);
}

const BFloat16* DenseDecoder::band_of(const BFloat16* tiles, uint32_t band, uint32_t columns) {
  return tiles + size_t{band} * tiles_of(columns) * kTileElements;
}

uint32_t* DenseDecoder::inner_of(uint32_t layer, uint32_t part) const {
  return inner_ + (size_t{layer} * parts_ + part) * vector_words(sequences_, columns_);
}

/// Sums are declared in row order, whatever the order of their words in memory.
Region DenseDecoder::rows_of_sums(uint32_t stage, const Span& rows) const {
  return sums_t_[stage].part(rows.begin * sizeof(uint64_t), rows.end * sizeof(uint64_t));
}

/// Returns the sums that a block reads. A block without bands reads only those that it carries on
/// (residual.hpp).
Region DenseDecoder::read_of_sums(uint32_t stage, const Span& bands, const Span& carried) const {
  return bands.count() > 0 ? sums_t_[stage].all() : rows_of_sums(stage, carried * kChunk);
}

void DenseDecoder::project_qkv(uint32_t layer, uint32_t block) {
  const uint32_t head = block / head_blocks_;
  const Span bands = share(bands_of(head_words()), block % head_blocks_, head_blocks_);
  const Span rows = bands * kTileRows, carried = chunks_of(block);
  if (bands.count() == 0 && carried.count() == 0) return;
  const size_t of_head = (size_t{layer} * shape_.kv_heads + head) * sequences_ * head_words();
  TaskOptions options{.name = fmt::format("qkv {} {}", layer, block), .worker = block};
  const DecoderWeights::Layer& weights = weights_.layers[layer];
  ProjectQkv<Alone<>>::Args args{
      .weights = band_of(weights.qkv, head * bands_of(head_words()) + bands.begin, shape_.hidden),
      .norm = weights.attention_norm,
      .sums = nullptr,
      .table = weights_.embedding,
      .token = token,
      .carry_to = sums_of(2 * layer),
      .qkv = static_cast<Stamped*>(qkv_) + of_head + rows.begin,
      .broken = broken_,
      .bands = bands.count(),
      .hidden = shape_.hidden,
      .terms = inner_terms(),
      .residual_event = 0,
      .sequence_words = head_words(),
      .carried = {carried.begin, carried.end},
      .epsilon = shape_.epsilon};
  if (layer == 0) {
    options.reads = {token_t_.all()};
  } else {
    args.sums = sums_of(2 * layer - 1);
    args.residual_event = after_inner_[layer - 1].id;
    options.reads = {read_of_sums(2 * layer - 1, bands, carried)};
    options.waits = {{after_inner_[layer - 1]}};
  }
  for (uint32_t s = 0; s < sequences_; ++s) {
    const uint32_t at = (head * sequences_ + s) * head_words();
    options.writes.push_back(
        qkv_t_[layer].part((at + rows.begin) * sizeof(Stamped), (at + rows.end) * sizeof(Stamped)));
  }
  options.adds = {rows_of_sums(2 * layer, carried * kChunk), broken_t_.all()};
  if (bands.count() > 0) options.signals.push_back({qkv_ready_[layer * shape_.kv_heads + head]});
  if (carried.count() > 0) options.signals.push_back({after_attention_[layer]});
  graph_.add<ProjectQkv<Alone<>>>(args, std::move(options));
}

void DenseDecoder::attend_split(uint32_t layer, uint32_t block) {
  const uint32_t head = block / head_blocks_;
  const uint32_t sequence = block % head_blocks_ / splits_, split = block % head_blocks_ % splits_;
  const uint32_t index = layer * shape_.kv_heads + head;
  const uint32_t of_layer = head * sequences_ + sequence, of_all = index * sequences_ + sequence;
  const size_t cache = (size_t{sequence} * shape_.layers * shape_.kv_heads + index) *
                       shape_.positions_max * shape_.head_dim;
  const size_t partial = size_t{of_all} * splits_ + split;
  const DecoderWeights::Layer& weights = weights_.layers[layer];
  TaskOptions options{.name = fmt::format("attention {} {}", layer, block),
                      .reads = {qkv_t_[layer].part(of_layer * head_words() * sizeof(Stamped),
                                                   (of_layer + 1) * head_words() * sizeof(Stamped)),
                                position_t_.all()},
                      .writes = {partial_t_[layer].part(of_layer * splits_ + split,
                                                        of_layer * splits_ + split + 1)},
                      .waits = {{qkv_ready_[index]}},
                      .signals = {{attended_[index]}},
                      .worker = block,
                      .ahead_bytes = shape_.head_dim * (4 * rows_max(weights) +
                                                        static_cast<uint32_t>(sizeof(float)))};
  if (split + 1 == splits_) options.writes.push_back(cache_t_[layer].part(of_layer, of_layer + 1));
  graph_.add<AttendSplit>(
      {.qkv = static_cast<Stamped*>(qkv_) + size_t{of_all} * head_words(),
       .k_cache = k_cache + cache,
       .v_cache = v_cache + cache,
       .pages = pages_,
       .position = position + sequence,
       .rotation = rotation_,
       .bias = weights.qkv_bias == nullptr ? nullptr : weights.qkv_bias + head * head_words(),
       .q_norm = weights.q_norm,
       .k_norm = weights.k_norm,
       .part = static_cast<Stamped*>(partial_) + partial * group_columns(),
       .weights = static_cast<SplitWeight*>(partial_weights_) + partial * shape_.group(),
       .heads = shape_.group(),
       .dim = shape_.head_dim,
       .page_tokens = shape_.page_tokens,
       .split = split,
       .splits = splits_,
       .rows_max = rows_max(weights),
       .window = weights.window,
       .qkv_event = qkv_ready_[index].id,
       .epsilon = shape_.epsilon},
      std::move(options));
}

void DenseDecoder::project_attention(uint32_t layer, uint32_t block) {
  const uint32_t head = block / head_blocks_;
  const uint32_t index = layer * shape_.kv_heads + head;
  const Span bands = share(bands_of(shape_.hidden), block % head_blocks_, head_blocks_);
  const Span rows = bands * kTileRows;
  const size_t first = size_t{index} * sequences_ * splits_;
  const uint32_t splits = sequences_ * splits_;
  TaskOptions options{.name = fmt::format("attention out {} {}", layer, block),
                      .reads = {partial_t_[layer].part(head * splits, (head + 1) * splits)},
                      .waits = {{attended_[index]}},
                      .worker = block};
  declare_adds(options, 2 * layer, rows);
  add_of_kind<ProjectAttention>(
      [&](auto& args) {
        args = {
            .weights = band_of(weights_.layers[layer].out,
                               head * bands_of(shape_.hidden) + bands.begin, group_columns()),
            .parts = static_cast<const Stamped*>(partial_) + first * group_columns(),
            .split_weights = static_cast<SplitWeight*>(partial_weights_) + first * shape_.group(),
            .sums = sums_to_add_to<decltype(args.sums)>(2 * layer),
            .broken = broken_,
            .heads = shape_.group(),
            .dim = shape_.head_dim,
            .splits = splits_,
            .first_row = rows.begin,
            .bands = bands.count(),
            .attended_event = attended_[index].id};
      },
      std::move(options));
}

void DenseDecoder::gate_up(uint32_t layer, uint32_t block) {
  const uint32_t part = block / part_blocks_;
  // A band has gate and up rows of some elements.
  const Span bands = share(bands_of(2 * columns_), block % part_blocks_, part_blocks_);
  const Span elements = bands * (kTileRows / 2);
  const uint32_t first = part * columns_;
  const Span carried = chunks_of(block);
  if (bands.count() == 0 && carried.count() == 0) return;
  std::vector<Signal> signals;
  if (bands.count() > 0) signals.push_back({inner_ready_[layer * parts_ + part]});
  if (carried.count() > 0) signals.push_back({after_inner_[layer]});
  const DecoderWeights::Layer& weights = weights_.layers[layer];
  graph_.add<GateUp<Alone<>>>(
      {.weights =
           band_of(weights.gate_up, part * bands_of(2 * columns_) + bands.begin, shape_.hidden),
       .norm = weights.mlp_norm,
       .sums = sums_of(2 * layer),
       .carry_to = sums_of(2 * layer + 1),
       .inner = inner_of(layer, part),
       .broken = broken_,
       .first = elements.begin,
       .bands = bands.count(),
       .hidden = shape_.hidden,
       .terms = attention_terms(),
       .residual_event = after_attention_[layer].id,
       .carried = {carried.begin, carried.end},
       .epsilon = shape_.epsilon},
      {.name = fmt::format("gate/up {} {}", layer, block),
       .reads = {read_of_sums(2 * layer, bands, carried)},
       .writes = {inner_t_[layer].part((first + elements.begin) * sizeof(uint32_t),
                                       (first + elements.end) * sizeof(uint32_t))},
       .adds = {rows_of_sums(2 * layer + 1, carried * kChunk), broken_t_.all()},
       .waits = {{after_attention_[layer]}},
       .signals = std::move(signals),
       .worker = block});
}

void DenseDecoder::project_down(uint32_t layer, uint32_t block) {
  const uint32_t part = block / part_blocks_, index = layer * parts_ + part;
  const Span bands = share(bands_of(shape_.hidden), block % part_blocks_, part_blocks_);
  if (bands.count() == 0) return;
  const Span rows = bands * kTileRows;
  TaskOptions options{.name = fmt::format("down {} {}", layer, block),
                      .reads = {inner_t_[layer].part(part * columns_ * sizeof(uint32_t),
                                                     (part + 1) * columns_ * sizeof(uint32_t))},
                      .waits = {{inner_ready_[index]}},
                      .worker = block};
  declare_adds(options, 2 * layer + 1, rows);
  add_of_kind<ProjectDown>(
      [&](auto& args) {
        args = {.weights = band_of(weights_.layers[layer].down, bands.begin, shape_.inner) +
                           part * tiles_of(columns_) * kTileElements,
                .inner = inner_of(layer, part),
                .sums = sums_to_add_to<decltype(args.sums)>(2 * layer + 1),
                .broken = broken_,
                .first_row = rows.begin,
                .bands = bands.count(),
                .columns = columns_,
                .band_tiles = tiles_of(shape_.inner),
                .inner_event = inner_ready_[index].id};
      },
      std::move(options));
}

void DenseDecoder::exchange_sums(uint32_t stage) {
  if (far_.empty()) return;
  send_sums(stage);
  for (uint32_t block = 0; block < blocks_; ++block) add_sums(stage, block);
}

void DenseDecoder::send_sums(uint32_t stage) {
  using Send = SendSums<Together<>>;
  const size_t words = stage_words(1), bytes = words * sizeof(uint64_t);
  const size_t at = (place_.ranks * size_t{stage} + place_.rank) * words;
  Send::Args args{.sums = outgoing_ + stage_words(stage),
                  .to = {},
                  .ranks = 0,
                  .hidden = shape_.hidden,
                  .words = static_cast<uint32_t>(words),
                  .terms = stage % 2 == 0 ? shape_.kv_heads : parts_,
                  .sums_event = outgoing_ready_[stage].id};
  TaskOptions options{.name = fmt::format("sums for other hosts {}", stage),
                      .reads = {outgoing_t_[stage].all()},
                      .writes = {outgoing_t_[stage].all()},
                      .waits = {{outgoing_ready_[stage]}},
                      .worker = blocks_ - 1};
  const Region own = incoming_t_[stage].part(place_.rank * bytes, (place_.rank + 1) * bytes);
  for (const uint32_t rank : far_) {
    args.to[args.ranks++] = Peer<uint64_t>(incoming_[rank] + at);
    options.writes.push_back(own.of(rank));
    options.signals.push_back({sums_arrived_[stage], rank});
  }
  graph_.add<Send>(args, std::move(options));
}

void DenseDecoder::add_sums(uint32_t stage, uint32_t block) {
  using Add = AddSums<Together<>>;
  const auto words = static_cast<uint32_t>(stage_words(1));
  const Span mine = share(words, block, blocks_);
  if (mine.count() == 0) return;
  Add::Args args{
      .from = {}, .sums = sums_of(stage), .ranks = 0, .begin = mine.begin, .end = mine.end};
  TaskOptions options{.name = fmt::format("sums of other hosts {} {}", stage, block),
                      .adds = {sums_t_[stage].all()},
                      .waits = {{sums_arrived_[stage]}},
                      .signals = {{after(stage)}},
                      .worker = block};
  for (const uint32_t rank : far_) {
    const size_t first = size_t{rank} * words;
    args.from[args.ranks++] = incoming_[place_.rank] + place_.ranks * stage_words(stage) + first;
    options.reads.push_back(incoming_t_[stage].part((first + mine.begin) * sizeof(uint64_t),
                                                    (first + mine.end) * sizeof(uint64_t)));
  }
  graph_.add<Add>(args, std::move(options));
}

void DenseDecoder::project_logits(uint32_t block) {
  const Span bands = share(bands_of(shape_.vocabulary), block, blocks_);
  const Span rows{
      bands.begin * kTileRows,
      std::min(bands.end * kTileRows, shape_.vocabulary)};  // The last band may be incomplete.
  const uint32_t last = shape_.layers - 1, stages = 2 * shape_.layers;
  const size_t best_bytes = sequences_ * sizeof(Best);
  const Span cleared = chunks_of(block);
  const auto words = static_cast<uint32_t>(stage_words(1));
  const Span cleared_words = share(words, block, blocks_);
  TaskOptions options{.name = fmt::format("logits {}", block),
                      .reads = {sums_t_[stages - 1].all()},
                      .writes = {best_t_.part(block * best_bytes, (block + 1) * best_bytes)},
                      .waits = {{after_inner_[last]}},
                      .signals = {{logits_ready_}},
                      .worker = block};
  for (uint32_t stage = 0; stage + 1 < stages; ++stage)
    options.writes.push_back(rows_of_sums(stage, cleared * kChunk));
  graph_.add<ProjectLogits<Alone<>>>(
      {.weights = band_of(weights_.head, bands.begin, shape_.hidden),
       .norm = weights_.final_norm,
       .sums = sums_of(stages - 1),
       .cleared = sums_of(0),
       .logits = logits + rows.begin,
       .best = static_cast<Best*>(best_) + size_t{block} * sequences_,
       .rows = rows.count(),
       .first_token = place_.rank * shape_.vocabulary + rows.begin,
       .hidden = shape_.hidden,
       .terms = inner_terms(),
       .stages = stages - 1,
       .residual_event = after_inner_[last].id,
       .sequence_logits = shape_.vocabulary,
       .stage_words = words,
       .cleared_words = {cleared_words.begin, cleared_words.end},
       .epsilon = shape_.epsilon},
      std::move(options));
}

void DenseDecoder::send_best() {
  const uint32_t stage = 2 * shape_.layers - 1, rank = place_.rank;
  const size_t bytes = sequences_ * sizeof(Best);
  using Send = SendBest<Together<>>;
  Send::Args args{.parts = static_cast<const Best*>(best_),
                  .to = {},
                  .sums = sums_of(stage),
                  .broken = broken_,
                  .part_count = blocks_,
                  .sum_count = static_cast<uint32_t>(stage_words(1)),
                  .ranks = place_.ranks};
  for (uint32_t to = 0; to < place_.ranks; ++to)
    args.to[to] = Peer<Best>(static_cast<Best*>(best_of_ranks_[to]) + size_t{rank} * sequences_);
  TaskOptions options{.name = "best of a rank",
                      .reads = {best_t_.all(), broken_t_.all()},
                      .writes = everywhere(best_of_ranks_t_.part(rank * bytes, (rank + 1) * bytes)),
                      // Otherwise the previous one might still be read.
                      .waits = {{logits_ready_}, {best_taken_, 1}},
                      .signals = to_everybody(all_ranks_best_),
                      .worker = 0};
  options.writes.push_back(sums_t_[stage].all());
  graph_.add<Send>(args, std::move(options));
}

template <class Type>
void DenseDecoder::add_next() {
  const uint32_t stage = 2 * shape_.layers - 1;
  const bool alone = place_.ranks == 1;
  typename Type::Args args{};
  args.parts = static_cast<const Best*>(alone ? best_ : best_of_ranks_[place_.rank]);
  args.part_count = alone ? blocks_ : place_.ranks;
  args.token = token;
  args.position = position;
  args.tokens = tokens;
  args.positions_max = shape_.positions_max;
  args.prompt = prompt_;
  if constexpr (requires { args.prompt_stride; }) {
    args.prompt_tokens = prompt_tokens_;
    args.prompt_stride = prompt_stride_;
  } else {
    args.prompt_tokens = prompt_stride_;
  }
  args.status = status;
  std::fill(std::begin(args.stop_tokens), std::end(args.stop_tokens), kNoToken);
  std::copy(stop_tokens_.begin(), stop_tokens_.end(), args.stop_tokens);
  TaskOptions options{
      .name = sequences_ > 1 ? "next tokens" : "next token",
      .reads = {alone ? best_t_.all() : best_of_ranks_t_.all(), token_t_.all(), position_t_.all()},
      .writes = {token_t_.all(), position_t_.all()},
      .waits = {{alone ? logits_ready_ : all_ranks_best_}},
      .signals = {{step_ended_}},
      .worker = 0};
  if (alone) {
    // With several ranks, send_best clears these sums and checks `broken`.
    args.sums = sums_of(stage);
    args.sum_count = static_cast<uint32_t>(stage_words(1));
    args.broken = broken_;
    options.reads.push_back(broken_t_.all());
    options.writes.push_back(sums_t_[stage].all());
  } else {
    for (const Signal& taken : to_everybody(best_taken_)) options.signals.push_back(taken);
  }
  graph_.add<Type>(args, std::move(options));
}

void DenseDecoder::decide_next() {
  // Arguments are the same for any number of sequences and ranks.
  sequences_ > 1 ? add_next<NextTokens<Alone<>>>() : add_next<NextToken>();
}

}  // namespace tokenyard::megakernel
