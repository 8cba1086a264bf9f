/// A Llama-shaped decoder of dense layers as one graph: a token an iteration, for one sequence on
/// one rank. tasks/layer.hpp tells its stages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/numbers.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::megakernel {

struct DecoderShape {
  uint32_t vocabulary, hidden, layers, query_heads, kv_heads, head_dim, inner;
  uint32_t page_tokens, positions_max;  ///< of the KV cache
  float epsilon, rope_base;

  uint32_t group() const { return query_heads / kv_heads; }
  /// The most blocks, of so many, among which the stages can be dealt out; 0: none.
  uint32_t blocks_of(uint32_t multiprocessors) const;
  /// Throws InvalidArgument naming what the tasks cannot do.
  void check(uint32_t blocks) const;
};

/// In this rank's memory; they must stay as long as the graph runs. All BF16.
struct DecoderWeights {
  struct Layer {
    const BFloat16* attention_norm;  ///< [hidden]
    const BFloat16* qkv;             ///< [kv heads][query heads of it, K, V][dim][hidden]
    const BFloat16* out;             ///< [kv heads][hidden][query heads of it * dim]
    const BFloat16* mlp_norm;        ///< [hidden]
    const BFloat16* gate_up;         ///< [inner][gate, up][hidden]
    const BFloat16* down;            ///< [hidden][inner]
  };
  const BFloat16* embedding;  ///< [vocabulary][hidden]
  std::vector<Layer> layers;
  const BFloat16* final_norm;  ///< [hidden]
  const BFloat16* head;        ///< [vocabulary][hidden]
};

struct DecoderOptions {
  uint32_t blocks = 1;           ///< workers of the megakernel
  std::vector<uint32_t> prompt;  ///< at least one token
  uint32_t stop_token = UINT32_MAX;
};

class DenseDecoder {
 public:
  DenseDecoder(TensorMemory& memory, const DecoderShape& shape, const DecoderWeights& weights,
               const DecoderOptions& options);

  const Graph& graph() const { return graph_; }
  /// For the megakernel: the largest unit that a task streams.
  uint32_t unit_bytes() const;

  // What a step leaves, in this rank's memory.
  float* logits = nullptr;       ///< [vocabulary]
  uint32_t* tokens = nullptr;    ///< [positions_max + 1] that have been decided, by position
  uint32_t* status = nullptr;    ///< a NextToken::Status
  uint32_t* token = nullptr;     ///< of the next step
  uint32_t* position = nullptr;  ///< likewise
  BFloat16* k_cache = nullptr;   ///< [layers][kv heads][positions_max][dim], by pages
  BFloat16* v_cache = nullptr;
  /// Words that stages hand on, cleared before the first iteration of an object.
  struct Words {
    void* begin;
    size_t bytes;
  };
  std::vector<Words> words;

 private:
  /// A matrix's rows, or the like, of one block.
  struct Span {
    uint32_t begin, end;
    uint32_t count() const { return end - begin; }
  };
  static Span share(uint32_t count, uint32_t index, uint32_t parts);

  template <class T>
  T* carried(size_t count);
  Tensor given(const std::string& name, const void* at, uint64_t bytes);
  void make_words(const DecoderOptions& options);
  void make_events();
  void project_qkv(uint32_t layer, uint32_t block);
  void attend_split(uint32_t layer, uint32_t block);
  void project_attention(uint32_t layer, uint32_t block);
  void gate_up(uint32_t layer, uint32_t block);
  void project_down(uint32_t layer, uint32_t block);
  void project_logits(uint32_t block);
  void next_token();

  uint32_t head_words() const { return (shape_.group() + 2) * shape_.head_dim; }
  uint32_t group_columns() const { return shape_.group() * shape_.head_dim; }
  uint64_t* sums_of(uint32_t stage) const { return sums_ + size_t{stage} * shape_.hidden; }
  /// Terms of a sum after attention, and after the feed-forward: a head's or a part's each, and the
  /// vector carried on.
  uint32_t attention_terms() const { return shape_.kv_heads + 1; }
  uint32_t inner_terms() const { return parts_ + 1; }

  TensorMemory& memory_;
  const DecoderShape shape_;
  const DecoderWeights weights_;
  Graph graph_;
  uint32_t blocks_, splits_;         ///< blocks of a KV head
  uint32_t parts_, columns_;         ///< of the feed-forward; inner elements of one
  uint32_t part_blocks_, rows_max_;  ///< blocks of a part; positions of a split
  uint32_t stop_token_, prompt_tokens_;

  uint64_t* sums_ = nullptr;   ///< [2 * layers][hidden]
  void* qkv_ = nullptr;        ///< [layers][kv heads][head_words] Stamped
  uint32_t* inner_ = nullptr;  ///< [layers][inner]
  uint32_t* broken_ = nullptr;
  void* partial_ = nullptr;          ///< [layers][kv heads][splits][group columns] Stamped
  void* partial_weights_ = nullptr;  ///< [layers][kv heads][splits][group] SplitWeight
  void* best_ = nullptr;             ///< [blocks] Best
  uint32_t* pages_ = nullptr;
  float* rotation_ = nullptr;  ///< [positions_max][cosines, sines][dim / 2]
  uint32_t* prompt_ = nullptr;

  Tensor token_t_, position_t_, best_t_, broken_t_;
  std::vector<Tensor> sums_t_, qkv_t_, inner_t_, cache_t_, partial_t_;
  std::vector<Event> after_attention_, after_inner_;  ///< [layers] carried
  std::vector<Event> qkv_ready_, attended_;           ///< [layers * kv heads] carried
  std::vector<Event> inner_ready_;                    ///< [layers * parts] carried
  Event logits_ready_, step_ended_;
};

}  // namespace tokenyard::megakernel
