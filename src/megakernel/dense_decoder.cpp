#include "megakernel/dense_decoder.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "megakernel/rotary_table.hpp"
#include "megakernel/tasks/dense.hpp"
#include "megakernel/tasks/layer.hpp"
#include "megakernel/tasks/logits.hpp"
#include "megakernel/tasks/project_attention.hpp"

namespace tokenyard::megakernel {

namespace {

uint32_t parts_of(uint32_t inner) {
  return (inner + kHeldColumnsMax - 1) / kHeldColumnsMax;
}

bool can_deal(const DecoderShape& shape, uint32_t blocks) {
  return blocks % shape.kv_heads == 0 && blocks / shape.kv_heads <= kSplitsMax &&
         blocks % parts_of(shape.inner) == 0 &&
         shape.hidden % (ProjectAttention::kUnitRows * (blocks / shape.kv_heads)) == 0;
}

}  // namespace

uint32_t DecoderShape::blocks_of(uint32_t multiprocessors) const {
  for (uint32_t blocks = multiprocessors; blocks > 0; --blocks)
    if (can_deal(*this, blocks)) return blocks;
  return 0;
}

void DecoderShape::check(uint32_t blocks) const {
  const auto require = [](bool holds, const char* argument, const std::string& expected,
                          uint32_t seen) {
    if (!holds) throw InvalidArgument(argument, expected, fmt::format("{}", seen));
  };
  require(hidden % kChunk == 0 && hidden <= kHeldColumnsMax, "hidden",
          fmt::format("a multiple of {} up to {}", kChunk, kHeldColumnsMax), hidden);
  require(query_heads % kv_heads == 0, "query_heads", "a multiple of kv_heads", query_heads);
  require(group() <= kSplitHeadsMax, "query_heads",
          fmt::format("at most {} a KV head", kSplitHeadsMax), query_heads);
  require(head_dim % (2 * kChunk) == 0 && head_dim <= kHeadDimMax, "head_dim",
          fmt::format("a multiple of {} up to {}", 2 * kChunk, kHeadDimMax), head_dim);
  require(group() * head_dim <= kGroupColumnsMax, "head_dim",
          fmt::format("at most {} with all query heads of a KV head", kGroupColumnsMax), head_dim);
  require(inner % (parts_of(inner) * kChunk) == 0, "inner",
          fmt::format("a multiple of {}", parts_of(inner) * kChunk), inner);
  require(positions_max % page_tokens == 0, "positions_max", "a multiple of page_tokens",
          positions_max);
  require(blocks > 0 && can_deal(*this, blocks), "blocks",
          fmt::format("a multiple of the {} KV heads, at most {} each, among which hidden rows can "
                      "be dealt out by eights",
                      kv_heads, kSplitsMax),
          blocks);
}

DenseDecoder::Span DenseDecoder::share(uint32_t count, uint32_t index, uint32_t parts) {
  const Share share = share_of(count, index, parts);
  return {share.begin, share.end};
}

DenseDecoder::DenseDecoder(TensorMemory& memory, const DecoderShape& shape,
                           const DecoderWeights& weights, const DecoderOptions& options)
    : memory_(memory),
      shape_(shape),
      weights_(weights),
      graph_(dense_tasks(), {}),
      blocks_(options.blocks),
      splits_(options.blocks / shape.kv_heads),
      parts_(parts_of(shape.inner)),
      columns_(shape.inner / parts_),
      part_blocks_(options.blocks / parts_),
      rows_max_(0),
      stop_token_(options.stop_token),
      prompt_tokens_(static_cast<uint32_t>(options.prompt.size())) {
  shape.check(options.blocks);
  if (options.prompt.empty()) throw InvalidArgument("prompt", "at least one token", "none");
  // The last split has the new token as well.
  rows_max_ = (shape.positions_max + splits_ - 1) / splits_ + 1;
  if (rows_max_ * shape.group() > kScoresMax)
    throw InvalidArgument("positions_max",
                          fmt::format("at most {} a block", kScoresMax / shape.group() - 1),
                          fmt::format("{}", rows_max_ - 1));
  make_words(options);
  make_events();
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    for (uint32_t block = 0; block < blocks_; ++block) project_qkv(layer, block);
    for (uint32_t block = 0; block < blocks_; ++block) attend_split(layer, block);
    for (uint32_t block = 0; block < blocks_; ++block) project_attention(layer, block);
    for (uint32_t block = 0; block < blocks_; ++block) gate_up(layer, block);
    for (uint32_t block = 0; block < blocks_; ++block) project_down(layer, block);
  }
  for (uint32_t block = 0; block < blocks_; ++block) project_logits(block);
  next_token();
  graph_.loop_on(step_ended_);
}

uint32_t DenseDecoder::unit_bytes() const {
  constexpr uint32_t kAligned = 128;
  const uint32_t elements =
      std::max({shape_.hidden, columns_, ProjectAttention::kUnitRows * group_columns()});
  return (2 * elements + kAligned - 1) / kAligned * kAligned;
}

template <class T>
T* DenseDecoder::carried(size_t count) {
  words.push_back({memory_.local(count * sizeof(T)), count * sizeof(T)});
  return static_cast<T*>(words.back().begin);
}

void DenseDecoder::make_words(const DecoderOptions& options) {
  const uint32_t hidden = shape_.hidden, heads = shape_.kv_heads;
  sums_ = carried<uint64_t>(size_t{2} * shape_.layers * hidden);
  qkv_ = carried<Stamped>(size_t{shape_.layers} * heads * head_words());
  inner_ = carried<uint32_t>(size_t{shape_.layers} * shape_.inner);
  const auto local = [&]<class T>(size_t count, T*& to) {
    to = static_cast<T*>(memory_.local(count * sizeof(T)));
  };
  partial_ = carried<Stamped>(size_t{shape_.layers} * blocks_ * group_columns());
  partial_weights_ = carried<SplitWeight>(size_t{shape_.layers} * blocks_ * shape_.group());
  best_ = memory_.local(blocks_ * sizeof(Best));
  local(1, broken_);
  local(shape_.vocabulary, logits);
  local(shape_.positions_max + 1, tokens);
  local(1, status);
  local(1, token);
  local(1, position);
  const size_t cached = size_t{shape_.layers} * heads * shape_.positions_max * shape_.head_dim;
  local(cached, k_cache);
  local(cached, v_cache);
  const uint32_t pages = shape_.positions_max / shape_.page_tokens;
  local(pages, pages_);
  std::vector<uint32_t> in_order(pages);
  for (uint32_t page = 0; page < pages; ++page) in_order[page] = page;
  memory_.write(pages_, in_order.data(), pages * sizeof(uint32_t));
  const std::vector<float> rotation =
      rotary_table(shape_.positions_max, shape_.head_dim, shape_.rope_base);
  local(rotation.size(), rotation_);
  memory_.write(rotation_, rotation.data(), rotation.size() * sizeof(float));
  local(options.prompt.size(), prompt_);
  memory_.write(prompt_, options.prompt.data(), options.prompt.size() * sizeof(uint32_t));
  memory_.write(token, options.prompt.data(), sizeof(uint32_t));
  memory_.write(tokens, options.prompt.data(), sizeof(uint32_t));

  const auto tensor = [&](std::string name, uint64_t bytes, Given given, bool are_words) {
    return graph_.tensor(
        {.name = std::move(name), .bytes = bytes, .given = given, .words = are_words});
  };
  token_t_ = tensor("token", sizeof(uint32_t), Given::always, false);
  position_t_ = tensor("position", sizeof(uint32_t), Given::always, false);
  broken_t_ = tensor("broken", sizeof(uint32_t), Given::always, true);
  best_t_ = tensor("best of blocks", blocks_ * sizeof(Best), Given::no, false);
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    for (const char* stage : {"attention", "feed-forward"})
      sums_t_.push_back(tensor(fmt::format("sums after {} {}", stage, layer),
                               hidden * sizeof(uint64_t), Given::always, true));
    qkv_t_.push_back(tensor(fmt::format("qkv {}", layer),
                            size_t{heads} * head_words() * sizeof(Stamped), Given::no, true));
    partial_t_.push_back(
        tensor(fmt::format("partial attention {}", layer), blocks_, Given::no, true));
    inner_t_.push_back(
        tensor(fmt::format("inner {}", layer), shape_.inner * sizeof(uint32_t), Given::no, true));
    // One row of it a head; rows of earlier steps nobody writes.
    cache_t_.push_back(
        tensor(fmt::format("new keys and values {}", layer), heads, Given::no, false));
  }
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
  logits_ready_ = graph_.event({.name = "logits"});
  step_ended_ = graph_.event({.name = "next token"});
}

void DenseDecoder::project_qkv(uint32_t layer, uint32_t block) {
  const uint32_t head = block / splits_;
  const Span rows = share(head_words(), block % splits_, splits_);
  const uint32_t first = head * head_words() + rows.begin;
  TaskOptions options{.name = fmt::format("qkv {} {}", layer, block), .worker = block};
  const DecoderWeights::Layer& weights = weights_.layers[layer];
  ProjectQkv::Args args{
      .weights = weights.qkv + size_t{first} * shape_.hidden,
      .norm = weights.attention_norm,
      .sums = nullptr,
      .table = weights_.embedding,
      .token = token,
      .carry_to = sums_of(2 * layer),
      .qkv = static_cast<Stamped*>(qkv_) + size_t{layer} * shape_.kv_heads * head_words() + first,
      .broken = broken_,
      .rows = rows.count(),
      .hidden = shape_.hidden,
      .terms = inner_terms(),
      .part = block,
      .parts = blocks_,
      .residual_event = 0,
      .epsilon = shape_.epsilon};
  if (layer == 0) {
    options.reads = {token_t_.all()};
  } else {
    args.sums = sums_of(2 * layer - 1);
    args.residual_event = after_inner_[layer - 1].id;
    options.reads = {sums_t_[2 * layer - 1].all()};
    options.waits = {{after_inner_[layer - 1]}};
  }
  options.writes = {
      qkv_t_[layer].part(first * sizeof(Stamped), (first + rows.count()) * sizeof(Stamped))};
  options.adds = {sums_t_[2 * layer].all(), broken_t_.all()};
  options.signals = {{qkv_ready_[layer * shape_.kv_heads + head]}, {after_attention_[layer]}};
  graph_.add<ProjectQkv>(args, std::move(options));
}

void DenseDecoder::attend_split(uint32_t layer, uint32_t block) {
  const uint32_t head = block / splits_, split = block % splits_;
  const uint32_t index = layer * shape_.kv_heads + head;
  const size_t cache = size_t{index} * shape_.positions_max * shape_.head_dim;
  const size_t partial = size_t{layer} * blocks_ + block;
  TaskOptions options{
      .name = fmt::format("attention {} {}", layer, block),
      .reads = {qkv_t_[layer].part(head * head_words() * sizeof(Stamped),
                                   (head + 1) * head_words() * sizeof(Stamped)),
                position_t_.all()},
      .writes = {partial_t_[layer].part(block, block + 1)},
      .waits = {{qkv_ready_[index]}},
      .signals = {{attended_[index]}},
      .worker = block,
      .ahead_bytes = shape_.head_dim * (4 * rows_max_ + static_cast<uint32_t>(sizeof(float)))};
  if (split + 1 == splits_) options.writes.push_back(cache_t_[layer].part(head, head + 1));
  graph_.add<AttendSplit>(
      {.qkv = static_cast<Stamped*>(qkv_) + size_t{index} * head_words(),
       .k_cache = k_cache + cache,
       .v_cache = v_cache + cache,
       .pages = pages_,
       .position = position,
       .rotation = rotation_,
       .part = static_cast<Stamped*>(partial_) + partial * group_columns(),
       .weights = static_cast<SplitWeight*>(partial_weights_) + partial * shape_.group(),
       .heads = shape_.group(),
       .dim = shape_.head_dim,
       .page_tokens = shape_.page_tokens,
       .split = split,
       .splits = splits_,
       .rows_max = rows_max_,
       .qkv_event = qkv_ready_[index].id},
      std::move(options));
}

void DenseDecoder::project_attention(uint32_t layer, uint32_t block) {
  const uint32_t head = block / splits_;
  const uint32_t index = layer * shape_.kv_heads + head;
  constexpr uint32_t kRows = ProjectAttention::kUnitRows;
  const Span units = share(shape_.hidden / kRows, block % splits_, splits_);
  const size_t first = size_t{layer} * blocks_ + head * splits_;
  graph_.add<ProjectAttention>(
      {.weights = weights_.layers[layer].out +
                  (size_t{head} * shape_.hidden + units.begin * kRows) * group_columns(),
       .parts = static_cast<const Stamped*>(partial_) + first * group_columns(),
       .split_weights = static_cast<SplitWeight*>(partial_weights_) + first * shape_.group(),
       .sums = sums_of(2 * layer),
       .broken = broken_,
       .heads = shape_.group(),
       .dim = shape_.head_dim,
       .splits = splits_,
       .first_row = units.begin * kRows,
       .rows = units.count() * kRows,
       .hidden = shape_.hidden,
       .attended_event = attended_[index].id},
      {.name = fmt::format("attention out {} {}", layer, block),
       .reads = {partial_t_[layer].part(head * splits_, (head + 1) * splits_)},
       .adds = {sums_t_[2 * layer].all(), broken_t_.all()},
       .waits = {{attended_[index]}},
       .signals = {{after_attention_[layer]}},
       .worker = block});
}

void DenseDecoder::gate_up(uint32_t layer, uint32_t block) {
  const uint32_t part = block / part_blocks_;
  const Span rows = share(columns_, block % part_blocks_, part_blocks_);
  const uint32_t first = part * columns_ + rows.begin;
  const DecoderWeights::Layer& weights = weights_.layers[layer];
  graph_.add<GateUp>({.weights = weights.gate_up + size_t{first} * 2 * shape_.hidden,
                      .norm = weights.mlp_norm,
                      .sums = sums_of(2 * layer),
                      .carry_to = sums_of(2 * layer + 1),
                      .inner = inner_ + size_t{layer} * shape_.inner + part * columns_,
                      .broken = broken_,
                      .first = rows.begin,
                      .columns = columns_,
                      .rows = rows.count(),
                      .hidden = shape_.hidden,
                      .terms = attention_terms(),
                      .part = block,
                      .parts = blocks_,
                      .residual_event = after_attention_[layer].id,
                      .epsilon = shape_.epsilon},
                     {.name = fmt::format("gate/up {} {}", layer, block),
                      .reads = {sums_t_[2 * layer].all()},
                      .writes = {inner_t_[layer].part(first * sizeof(uint32_t),
                                                      (first + rows.count()) * sizeof(uint32_t))},
                      .adds = {sums_t_[2 * layer + 1].all(), broken_t_.all()},
                      .waits = {{after_attention_[layer]}},
                      .signals = {{inner_ready_[layer * parts_ + part]}, {after_inner_[layer]}},
                      .worker = block});
}

void DenseDecoder::project_down(uint32_t layer, uint32_t block) {
  const uint32_t part = block / part_blocks_, index = layer * parts_ + part;
  const Span rows = share(shape_.hidden, block % part_blocks_, part_blocks_);
  graph_.add<ProjectDown>(
      {.weights = weights_.layers[layer].down + size_t{rows.begin} * shape_.inner + part * columns_,
       .inner = inner_ + size_t{layer} * shape_.inner + part * columns_,
       .sums = sums_of(2 * layer + 1),
       .broken = broken_,
       .first_row = rows.begin,
       .rows = rows.count(),
       .columns = columns_,
       .row_elements = shape_.inner,
       .hidden = shape_.hidden,
       .inner_event = inner_ready_[index].id},
      {.name = fmt::format("down {} {}", layer, block),
       .reads = {inner_t_[layer].part(part * columns_ * sizeof(uint32_t),
                                      (part + 1) * columns_ * sizeof(uint32_t))},
       .adds = {sums_t_[2 * layer + 1].all(), broken_t_.all()},
       .waits = {{inner_ready_[index]}},
       .signals = {{after_inner_[layer]}},
       .worker = block});
}

void DenseDecoder::project_logits(uint32_t block) {
  const Span rows = share(shape_.vocabulary, block, blocks_);
  const uint32_t last = shape_.layers - 1, stages = 2 * shape_.layers;
  // Clearing is dealt out by chunks; each block's are declared as if they lay together.
  const Span cleared = share(shape_.hidden, block, blocks_);
  TaskOptions options{.name = fmt::format("logits {}", block),
                      .reads = {sums_t_[stages - 1].all()},
                      .writes = {best_t_.part(block * sizeof(Best), (block + 1) * sizeof(Best))},
                      .waits = {{after_inner_[last]}},
                      .signals = {{logits_ready_}},
                      .worker = block};
  for (uint32_t stage = 0; stage + 1 < stages; ++stage)
    options.writes.push_back(
        sums_t_[stage].part(cleared.begin * sizeof(uint64_t), cleared.end * sizeof(uint64_t)));
  graph_.add<ProjectLogits>({.weights = weights_.head + size_t{rows.begin} * shape_.hidden,
                             .norm = weights_.final_norm,
                             .sums = sums_of(stages - 1),
                             .cleared = sums_,
                             .logits = logits + rows.begin,
                             .best = static_cast<Best*>(best_) + block,
                             .rows = rows.count(),
                             .first_token = rows.begin,
                             .hidden = shape_.hidden,
                             .terms = inner_terms(),
                             .stages = stages - 1,
                             .part = block,
                             .parts = blocks_,
                             .residual_event = after_inner_[last].id,
                             .epsilon = shape_.epsilon},
                            std::move(options));
}

void DenseDecoder::next_token() {
  const uint32_t stage = 2 * shape_.layers - 1;
  graph_.add<NextToken>(
      {.parts = static_cast<Best*>(best_),
       .token = token,
       .position = position,
       .tokens = tokens,
       .prompt = prompt_,
       .status = status,
       .sums = sums_of(stage),
       .broken = broken_,
       .sum_count = shape_.hidden,
       .part_count = blocks_,
       .positions_max = shape_.positions_max,
       .prompt_tokens = prompt_tokens_,
       .stop_token = stop_token_},
      {.name = "next token",
       .reads = {best_t_.all(), token_t_.all(), position_t_.all(), broken_t_.all()},
       .writes = {token_t_.all(), position_t_.all(), sums_t_[stage].all()},
       .waits = {{logits_ready_}},
       .signals = {{step_ended_}},
       .worker = 0});
}

}  // namespace tokenyard::megakernel
