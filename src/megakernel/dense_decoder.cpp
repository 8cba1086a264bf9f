#include "megakernel/dense_decoder.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "megakernel/rotary_table.hpp"
#include "megakernel/tasks/dense.hpp"
#include "megakernel/tasks/project_attention.hpp"
#include "megakernel/tasks/send_best.hpp"

namespace tokenyard::megakernel {

namespace {

const DecoderShape& checked(const DecoderShape& shape, const DecoderOptions& options) {
  shape.check(options.blocks, options.place.ranks);
  if (options.prompt.empty()) throw InvalidArgument("prompt", "at least one token", "none");
  return shape;
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
      weights_(weights),
      graph_(place_.ranks > 1 ? shared_dense_tasks() : dense_tasks(), place_),
      blocks_(options.blocks),
      head_blocks_(options.blocks / shape_.kv_heads),
      splits_(std::min(head_blocks_, kSplitsMax)),
      parts_(shape_.inner_parts()),
      columns_(shape_.inner / parts_),
      part_blocks_(options.blocks / parts_),
      rows_max_(0),
      stop_token_(options.stop_token),
      prompt_tokens_(static_cast<uint32_t>(options.prompt.size())) {
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
    for (uint32_t block = 0; block < blocks_; ++block)
      if (block % head_blocks_ < splits_) attend_split(layer, block);
    for (uint32_t block = 0; block < blocks_; ++block) project_attention(layer, block);
    for (uint32_t block = 0; block < blocks_; ++block) gate_up(layer, block);
    for (uint32_t block = 0; block < blocks_; ++block) project_down(layer, block);
  }
  for (uint32_t block = 0; block < blocks_; ++block) project_logits(block);
  if (place_.ranks > 1) send_best();
  next_token();
  graph_.loop_on(step_ended_);
}

uint32_t DenseDecoder::unit_bytes() const {
  constexpr uint32_t kAligned = 128;
  const uint32_t elements = std::max({shape_.hidden, columns_, kUnitRows * group_columns()});
  return (2 * elements + kAligned - 1) / kAligned * kAligned;
}

template <class T>
T* DenseDecoder::carried(size_t count) {
  words.push_back({memory_.local(count * sizeof(T)), count * sizeof(T)});
  return static_cast<T*>(words.back().begin);
}

void DenseDecoder::make_sums() {
  const size_t count = size_t{2} * shape_.layers * shape_.hidden;
  if (place_.ranks == 1) {
    sums_ = {carried<uint64_t>(count)};
    return;
  }
  for (void* const piece : memory_.shared(count * sizeof(uint64_t)))
    sums_.push_back(static_cast<uint64_t*>(piece));
  best_of_ranks_ = memory_.shared(place_.ranks * sizeof(Best));
}

void DenseDecoder::make_words(const DecoderOptions& options) {
  const uint32_t hidden = shape_.hidden, heads = shape_.kv_heads;
  make_sums();
  qkv_ = carried<Stamped>(size_t{shape_.layers} * heads * head_words());
  inner_ = carried<uint32_t>(size_t{shape_.layers} * shape_.inner);
  const auto local = [&]<class T>(size_t count, T*& to) {
    to = static_cast<T*>(memory_.local(count * sizeof(T)));
  };
  const size_t splits = size_t{shape_.layers} * heads * splits_;
  partial_ = carried<Stamped>(splits * group_columns());
  partial_weights_ = carried<SplitWeight>(splits * shape_.group());
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
  best_of_ranks_t_ = tensor("best of ranks", place_.ranks * sizeof(Best), Given::no, false);
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    for (const char* stage : {"attention", "feed-forward"})
      sums_t_.push_back(tensor(fmt::format("sums after {} {}", stage, layer),
                               hidden * sizeof(uint64_t), Given::always, true));
    qkv_t_.push_back(tensor(fmt::format("qkv {}", layer),
                            size_t{heads} * head_words() * sizeof(Stamped), Given::no, true));
    partial_t_.push_back(
        tensor(fmt::format("partial attention {}", layer), heads * splits_, Given::no, true));
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
  all_ranks_best_ = graph_.event({.name = "all ranks' best"});
  best_taken_ = graph_.event({.name = "best taken by all ranks"});
  step_ended_ = graph_.event({.name = "next token"});
}

}  // namespace tokenyard::megakernel
