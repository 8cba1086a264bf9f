#include "decoder/dense_decoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "decoder/rotary_table.hpp"
#include "decoder/tasks/dense.hpp"
#include "decoder/tasks/project_attention.hpp"
#include "decoder/tasks/send_best.hpp"
#include "megakernel/tasks/token.hpp"

namespace tokenyard::megakernel {

namespace {

void check_prompt(const std::vector<uint32_t>& prompt, size_t sequence, const DecoderShape& shape) {
  if (prompt.empty() || prompt.size() > shape.positions_max + 1)
    throw InvalidArgument("prompts", fmt::format("1 to {} tokens", shape.positions_max + 1),
                          fmt::format("{}", prompt.size()));
  for (size_t position = 0; position < prompt.size(); ++position)
    if (prompt[position] >= shape.vocabulary)
      throw InvalidArgument(
          "prompts", fmt::format("tokens below {}, the vocabulary", shape.vocabulary),
          fmt::format("{} at position {} of sequence {}", prompt[position], position, sequence));
}

void check_stop_tokens(const std::vector<uint32_t>& stop_tokens, const DecoderShape& shape) {
  if (stop_tokens.size() > kStopTokensMax)
    throw InvalidArgument("stop_tokens", fmt::format("at most {}", kStopTokensMax),
                          fmt::format("{}", stop_tokens.size()));
  for (const uint32_t token : stop_tokens)
    if (token >= shape.vocabulary)
      throw InvalidArgument("stop_tokens",
                            fmt::format("tokens below {}, the vocabulary", shape.vocabulary),
                            fmt::format("{}", token));
}

void check_layers(const std::vector<DecoderWeights::Layer>& layers, uint32_t count) {
  if (layers.size() != count)
    throw InvalidArgument("layers", fmt::format("{}", count), fmt::format("{}", layers.size()));
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if ((layers[layer].q_norm == nullptr) != (layers[layer].k_norm == nullptr))
      throw InvalidArgument("q_norm", "both q_norm and k_norm, or neither",
                            fmt::format("one of them in layer {}", layer));
    if (layers[layer].window == 0)
      throw InvalidArgument("window", "at least 1 position", fmt::format("0 in layer {}", layer));
  }
}

/// Checks and returns `shape`, that of the whole model.
const DecoderShape& checked(const DecoderShape& shape, const DecoderOptions& options) {
  const size_t sequences = options.prompts.size();
  if (sequences == 0 || sequences > kSequencesMax || !std::has_single_bit(sequences))
    throw InvalidArgument("prompts", "1, 2, 4 or 8", fmt::format("{}", sequences));
  shape.check(options.blocks, options.place.ranks);
  const uint32_t head_blocks = options.blocks / (shape.kv_heads / options.place.ranks);
  if (head_blocks < sequences)
    throw InvalidArgument("blocks", "at least as many per KV head as there are sequences",
                          fmt::format("{} for {}", head_blocks, sequences));
  for (size_t sequence = 0; sequence < sequences; ++sequence)
    check_prompt(options.prompts[sequence], sequence, shape);
  check_stop_tokens(options.stop_tokens, shape);
  return shape;
}

/// Returns the ranks whose memory this rank's tasks reach, or all others.
std::vector<uint32_t> ranks_of(const TensorMemory& memory, const Graph::Place& place,
                               bool reached) {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < place.ranks; ++rank)
    if (memory.reaches(rank) == reached) ranks.push_back(rank);
  return ranks;
}

const TaskSet& tasks_of(const DecoderOptions& options, bool between_hosts) {
  return dense_tasks({.ranks = options.place.ranks == 1 ? DenseRanks::one
                               : between_hosts          ? DenseRanks::on_several_hosts
                                                        : DenseRanks::on_one_host,
                      .sequences = static_cast<uint32_t>(options.prompts.size())});
}

}  // namespace

DenseDecoder::Span DenseDecoder::share(uint32_t count, uint32_t index, uint32_t parts) {
  const Share share = share_of(count, index, parts);
  return {share.begin, share.end};
}

DenseDecoder::DenseDecoder(TensorMemory& memory, const DecoderShape& shape,
                           const DecoderWeights& weights, const DecoderOptions& options)
    : memory_(memory),
      place_(options.place),
      shape_(checked(shape, options).of_rank(options.place.ranks)),
      near_(ranks_of(memory, place_, true)),
      far_(ranks_of(memory, place_, false)),
      weights_(weights),
      graph_(tasks_of(options, !far_.empty()), place_),
      sequences_(static_cast<uint32_t>(options.prompts.size())),
      blocks_(options.blocks),
      head_blocks_(options.blocks / shape_.kv_heads),
      splits_(std::bit_floor(std::min(head_blocks_, kSplitsMax) / sequences_)),
      parts_(shape_.inner_parts()),
      columns_(shape_.inner / parts_),
      part_blocks_(options.blocks / parts_),
      stop_tokens_(options.stop_tokens),
      prompt_stride_(0) {
  check_layers(weights_.layers, shape_.layers);
  for (const DecoderWeights::Layer& layer : weights_.layers)
    if (rows_max(layer) * shape.group() > kScoresMax)
      throw InvalidArgument("positions_max",
                            fmt::format("at most {} per block", kScoresMax / shape.group() - 1),
                            fmt::format("{}", rows_max(layer) - 1));
  make_words(options);
  make_events();
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    for (uint32_t block = 0; block < blocks_; ++block) project_qkv(layer, block);
    for (uint32_t block = 0; block < blocks_; ++block)
      if (block % head_blocks_ < sequences_ * splits_) attend_split(layer, block);
    for (uint32_t block = 0; block < blocks_; ++block) project_attention(layer, block);
    exchange_sums(2 * layer);
    for (uint32_t block = 0; block < blocks_; ++block) gate_up(layer, block);
    for (uint32_t block = 0; block < blocks_; ++block) project_down(layer, block);
    exchange_sums(2 * layer + 1);
  }
  for (uint32_t block = 0; block < blocks_; ++block) project_logits(block);
  if (place_.ranks > 1) send_best();
  decide_next();
  graph_.loop_on(step_ended_);
  graph_.need_warps(slices_of(std::max(shape_.hidden, columns_)));
}

uint32_t DenseDecoder::rows_max(const DecoderWeights::Layer& layer) const {
  const uint32_t positions = std::min(shape_.positions_max, layer.window);
  return kSections / splits_ * ((positions + kSections - 1) / kSections) + 1;
}

uint32_t DenseDecoder::unit_bytes() const {
  const uint32_t columns = std::max({shape_.hidden, columns_, group_columns()});
  return std::min(tiles_of(columns), kSliceTiles) * kTileBytes;
}

template <class T>
T* DenseDecoder::carried(size_t count) {
  words.push_back({memory_.local(count * sizeof(T)).data, count * sizeof(T)});
  return static_cast<T*>(words.back().begin);
}

void DenseDecoder::make_sums() {
  const size_t count = stage_words(2 * shape_.layers);
  if (place_.ranks == 1) {
    sums_ = {carried<uint64_t>(count)};
    return;
  }
  for (const TensorView& piece : memory_.shared_on_host(count * sizeof(uint64_t)))
    sums_.push_back(piece.as<uint64_t>());
  for (const TensorView& piece : memory_.shared(size_t{place_.ranks} * sequences_ * sizeof(Best)))
    best_of_ranks_.push_back(piece.data);
  if (far_.empty()) return;
  outgoing_ = carried<uint64_t>(count);
  for (const TensorView& piece : memory_.shared(place_.ranks * count * sizeof(uint64_t)))
    incoming_.push_back(piece.as<uint64_t>());
}

void DenseDecoder::make_prompts(const DecoderOptions& options) {
  std::vector<uint32_t> counts, firsts;
  for (const std::vector<uint32_t>& prompt : options.prompts) {
    counts.push_back(static_cast<uint32_t>(prompt.size()));
    firsts.push_back(prompt[0]);
    prompt_stride_ = std::max(prompt_stride_, counts.back());
  }
  std::vector<uint32_t> all(size_t{sequences_} * prompt_stride_);
  for (uint32_t s = 0; s < sequences_; ++s)
    std::copy(options.prompts[s].begin(), options.prompts[s].end(),
              all.begin() + size_t{s} * prompt_stride_);
  const auto place = [&](const std::vector<uint32_t>& values) {
    const TensorView there = memory_.local(values.size() * sizeof(uint32_t));
    memory_.write(there, ConstTensorView::of(std::span(values)));
    return there.as<uint32_t>();
  };
  prompt_ = place(all);
  prompt_tokens_ = place(counts);
  memory_.write({token, {sequences_}}, ConstTensorView::of(std::span(firsts)));
  for (uint32_t s = 0; s < sequences_; ++s)
    memory_.write({tokens + s * (shape_.positions_max + 1), {1}}, {&firsts[s], {1}});
}

void DenseDecoder::make_words(const DecoderOptions& options) {
  const uint32_t hidden = shape_.hidden, heads = shape_.kv_heads;
  make_sums();
  qkv_ = carried<Stamped>(size_t{shape_.layers} * heads * sequences_ * head_words());
  inner_ = carried<uint32_t>(size_t{shape_.layers} * parts_ * vector_words(sequences_, columns_));
  const auto local = [&]<class T>(size_t count, T*& to) {
    to = memory_.local(count * sizeof(T)).template as<T>();
  };
  const size_t splits = size_t{shape_.layers} * heads * sequences_ * splits_;
  partial_ = carried<Stamped>(splits * group_columns());
  partial_weights_ = carried<SplitWeight>(splits * shape_.group());
  best_ = memory_.local(size_t{blocks_} * sequences_ * sizeof(Best)).data;
  local(1, broken_);
  local(size_t{sequences_} * shape_.vocabulary, logits);
  local(sequences_ * (shape_.positions_max + 1), tokens);
  local(sequences_, status);
  local(sequences_, token);
  local(sequences_, position);
  const size_t cached =
      size_t{sequences_} * shape_.layers * heads * shape_.positions_max * shape_.head_dim;
  local(cached, k_cache);
  local(cached, v_cache);
  const uint32_t pages = shape_.positions_max / shape_.page_tokens;
  local(pages, pages_);
  std::vector<uint32_t> in_order(pages);
  for (uint32_t page = 0; page < pages; ++page) in_order[page] = page;
  memory_.write({pages_, {pages}}, ConstTensorView::of(std::span(in_order)));
  const std::vector<float> rotation = rotary_table(shape_);
  local(rotation.size(), rotation_);
  memory_.write({rotation_, {rotation.size()}}, ConstTensorView::of(std::span(rotation)));
  make_prompts(options);

  const auto tensor = [&](std::string name, uint64_t bytes, Given given, bool are_words) {
    return graph_.tensor(
        {.name = std::move(name), .bytes = bytes, .given = given, .words = are_words});
  };
  token_t_ = tensor("token", sequences_ * sizeof(uint32_t), Given::always, false);
  position_t_ = tensor("position", sequences_ * sizeof(uint32_t), Given::always, false);
  broken_t_ = tensor("broken", sizeof(uint32_t), Given::always, true);
  best_t_ = tensor("best of blocks", blocks_ * size_t{sequences_} * sizeof(Best), Given::no, false);
  const size_t best_bytes = place_.ranks * size_t{sequences_} * sizeof(Best);
  best_of_ranks_t_ = graph_.tensor({.name = "best of ranks",
                                    .bytes = best_bytes,
                                    .places = places_of(best_of_ranks_, 0, best_bytes)});
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    for (const char* stage : {"attention", "feed-forward"})
      sums_t_.push_back(tensor(fmt::format("sums after {} {}", stage, layer),
                               hidden * sizeof(uint64_t), Given::always, true));
    qkv_t_.push_back(tensor(fmt::format("qkv {}", layer),
                            size_t{heads} * sequences_ * head_words() * sizeof(Stamped), Given::no,
                            true));
    partial_t_.push_back(tensor(fmt::format("partial attention {}", layer),
                                heads * sequences_ * splits_, Given::no, true));
    inner_t_.push_back(
        tensor(fmt::format("inner {}", layer), shape_.inner * sizeof(uint32_t), Given::no, true));
    // One byte per head and sequence stands for the new row; rows of earlier steps are never
    // written.
    cache_t_.push_back(
        tensor(fmt::format("new keys and values {}", layer), heads * sequences_, Given::no, false));
  }
  for (uint32_t stage = 0; !far_.empty() && stage < 2 * shape_.layers; ++stage) {
    outgoing_t_.push_back(tensor(fmt::format("sums for other hosts {}", stage),
                                 hidden * sizeof(uint64_t), Given::always, true));
    const size_t begin = place_.ranks * stage_words(stage) * sizeof(uint64_t);
    const size_t bytes = place_.ranks * stage_words(1) * sizeof(uint64_t);
    incoming_t_.push_back(graph_.tensor({.name = fmt::format("sums of other hosts {}", stage),
                                         .bytes = bytes,
                                         .places = places_of(incoming_, begin, bytes)}));
  }
}

template <class T>
std::vector<ConstTensorView> DenseDecoder::places_of(const std::vector<T*>& pieces, size_t begin,
                                                     size_t bytes) const {
  std::vector<ConstTensorView> places;
  if (far_.empty()) return places;
  for (T* const piece : pieces)
    places.push_back(
        ConstTensorView::bytes_at(reinterpret_cast<const std::byte*>(piece) + begin, bytes));
  return places;
}

void DenseDecoder::make_events() {
  const auto event = [&](const std::string& name, uint32_t index, bool by_data) {
    return graph_.event({.name = fmt::format("{} {}", name, index), .carried = by_data});
  };
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    after_attention_.push_back(event("vector after attention", layer, true));
    after_inner_.push_back(event("vector after feed-forward", layer, true));
  }
  for (uint32_t i = 0; i < shape_.layers * shape_.kv_heads; ++i) {
    qkv_ready_.push_back(event("qkv of layer and head", i, true));
    attended_.push_back(event("attention of layer and head", i, true));
  }
  for (uint32_t i = 0; i < shape_.layers * parts_; ++i)
    inner_ready_.push_back(event("inner elements of layer and part", i, true));
  for (uint32_t stage = 0; !far_.empty() && stage < 2 * shape_.layers; ++stage) {
    outgoing_ready_.push_back(event("sums for other hosts", stage, true));
    sums_arrived_.push_back(event("sums of other hosts", stage, false));
  }
  logits_ready_ = graph_.event({.name = "logits"});
  all_ranks_best_ = graph_.event({.name = "all ranks' best"});
  best_taken_ = graph_.event({.name = "best taken by all ranks"});
  step_ended_ = graph_.event({.name = "next token"});
}

}  // namespace tokenyard::megakernel
