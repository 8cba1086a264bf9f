/// A Llama-shaped decoder of dense layers as one graph: one token of each sequence per iteration.
/// tasks/layer.hpp describes its stages.
///
/// Several ranks can share a model (tensor parallelism): each has its part of the heads, of the
/// feed-forward's inner elements and of the vocabulary. A block adds each of its products to the
/// sums of every rank of its host, so the next stage waits no longer for these ranks than for this
/// one. Ranks of other hosts get all terms of a rank at once (tasks/between_hosts.hpp). All ranks
/// have bitwise equal results: those of one rank alone if the terms are the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "decoder/decoder_shape.hpp"
#include "decoder/tasks/slices.hpp"
#include "device/numbers.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::megakernel {

/// Weights in this rank's memory, valid as long as the graph runs. All are BF16. KV heads, inner
/// elements and the head's tokens are this rank's: for rank r of R, the r-th of R equal parts.
/// Tiled matrices have the layout of tiles.hpp, with the last dimension as columns and all others
/// as rows.
struct DecoderWeights {
  struct Layer {
    const BFloat16* attention_norm;  ///< [hidden]
    const BFloat16* qkv;             ///< [kv heads][query heads of it, K, V][dim][hidden], tiled
    const BFloat16* out;             ///< [kv heads][hidden][query heads of it * dim], tiled
    const BFloat16* mlp_norm;        ///< [hidden]
    const BFloat16* gate_up;         ///< [inner][gate, up][hidden], tiled
    const BFloat16* down;            ///< [hidden][inner], tiled
    /// [kv heads][query heads of it, K, V][dim], or null if the model has no biases.
    const BFloat16* qkv_bias = nullptr;
    const BFloat16* q_norm = nullptr;  ///< [dim] of RMSNorm before RoPE, or null
    const BFloat16* k_norm = nullptr;  ///< [dim], or null together with q_norm
    uint32_t window = UINT32_MAX;      ///< number of latest positions attended to; UINT32_MAX: all
  };
  const BFloat16* embedding;  ///< [vocabulary of all ranks][hidden]
  std::vector<Layer> layers;
  const BFloat16* final_norm;  ///< [hidden]
  const BFloat16* head;        ///< [vocabulary][hidden], tiled
};

struct DecoderOptions {
  uint32_t blocks = 1;  ///< workers of the megakernel
  /// One prompt per sequence, of at least one token: 1, 2, 4 or 8, which share every load of a
  /// weight. Alike on all ranks.
  std::vector<std::vector<uint32_t>> prompts;
  std::vector<uint32_t> stop_tokens = {};  ///< each ends a sequence; at most 8
  Graph::Place place = {};                 ///< this rank's, among those that share the model
};

class DenseDecoder {
 public:
  /// Builds the graph. Collective if there are several ranks. `shape`: that of the whole model,
  /// alike on all ranks.
  DenseDecoder(TensorMemory& memory, const DecoderShape& shape, const DecoderWeights& weights,
               const DecoderOptions& options);

  const Graph& graph() const { return graph_; }
  /// Returns MegakernelOptions::unit_bytes for this graph: the largest unit that a task streams.
  uint32_t unit_bytes() const;

  // Results of a step, in this rank's memory.
  float* logits = nullptr;       ///< [sequences][vocabulary of this rank]
  uint32_t* tokens = nullptr;    ///< [sequences][positions_max + 1] by position
  uint32_t* status = nullptr;    ///< [sequences] a SequenceStatus
  uint32_t* token = nullptr;     ///< [sequences] for the next step
  uint32_t* position = nullptr;  ///< [sequences] for the next step
  /// [sequences][layers][kv heads of this rank][positions_max][dim], by pages
  BFloat16* k_cache = nullptr;
  BFloat16* v_cache = nullptr;
  /// Words of one rank that stages pass on, cleared before the first iteration of an object.
  struct Words {
    void* begin;
    size_t bytes;
  };
  std::vector<Words> words;

 private:
  /// A range of rows, bands or chunks of one block.
  struct Span {
    uint32_t begin, end;
    uint32_t count() const { return end - begin; }
    Span operator*(uint32_t each) const { return {begin * each, end * each}; }
  };
  static Span share(uint32_t count, uint32_t index, uint32_t parts);

  template <class T>
  T* carried(size_t count);
  void make_sums();
  void make_prompts(const DecoderOptions& options);
  Tensor given(const std::string& name, const void* at, uint64_t bytes);
  void make_words(const DecoderOptions& options);
  /// Returns the same bytes of each rank's piece, as places of a tensor that ranks of other hosts
  /// write; nothing if there are none.
  template <class T>
  std::vector<ConstTensorView> places_of(const std::vector<T*>& pieces, size_t begin,
                                         size_t bytes) const;
  void make_events();
  void project_qkv(uint32_t layer, uint32_t block);
  void attend_split(uint32_t layer, uint32_t block);
  void project_attention(uint32_t layer, uint32_t block);
  void gate_up(uint32_t layer, uint32_t block);
  void project_down(uint32_t layer, uint32_t block);
  /// Add the tasks that exchange a stage's sums with ranks of other hosts, if there are any.
  void exchange_sums(uint32_t stage);
  void send_sums(uint32_t stage);
  void add_sums(uint32_t stage, uint32_t block);
  void project_logits(uint32_t block);
  void send_best();
  /// Adds the task that ends a step: it decides each sequence's next token.
  void decide_next();
  template <class Type>
  void add_next();

  uint32_t head_words() const { return (shape_.group() + 2) * shape_.head_dim; }
  uint32_t group_columns() const { return shape_.group() * shape_.head_dim; }
  uint64_t* sums_of(uint32_t stage) const { return sums_[place_.rank] + stage_words(stage); }
  size_t stage_words(uint32_t stages) const {
    return size_t{stages} * vector_words(sequences_, shape_.hidden);
  }
  /// Returns the begin of a band of a tiled matrix.
  static const BFloat16* band_of(const BFloat16* tiles, uint32_t band, uint32_t columns);
  uint32_t* inner_of(uint32_t layer, uint32_t part) const;
  /// Returns the most positions per split; the last split has the new token as well.
  uint32_t rows_max(const DecoderWeights::Layer& layer) const;
  /// Returns the sums of a stage that this rank's products are added to.
  template <class Sums>
  Sums sums_to_add_to(uint32_t stage) const;
  /// Declares that a task adds its rows to them.
  void declare_adds(TaskOptions& options, uint32_t stage, const Span& rows) const;
  /// Adds a task whose arguments differ by kind; `fill` fills them in.
  template <template <class> class Type, class Fill>
  void add_of_kind(Fill fill, TaskOptions options);
  std::vector<Region> everywhere(const Region& region) const;
  std::vector<Signal> to_everybody(Event event) const;
  /// Returns the chunks of the vector that a block carries on and clears.
  Span chunks_of(uint32_t block) const;
  Region rows_of_sums(uint32_t stage, const Span& rows) const;
  Region read_of_sums(uint32_t stage, const Span& bands, const Span& carried) const;
  /// Return the number of terms of a sum after attention and after the feed-forward: one per head
  /// or part, and the carried vector.
  uint32_t attention_terms() const { return shape_.kv_heads * place_.ranks + 1; }
  uint32_t inner_terms() const { return parts_ * place_.ranks + 1; }
  /// Returns the event that a stage's sums carry.
  Event after(uint32_t stage) const {
    return (stage % 2 == 0 ? after_attention_ : after_inner_)[stage / 2];
  }

  TensorMemory& memory_;
  const Graph::Place place_;
  const DecoderShape shape_;                ///< this rank's part
  const std::vector<uint32_t> near_, far_;  ///< ranks of this host, itself too; of other hosts
  const DecoderWeights weights_;
  Graph graph_;
  uint32_t sequences_, blocks_;
  uint32_t head_blocks_, splits_;  ///< blocks per KV head; those of them that attend
  uint32_t parts_, columns_;       ///< parts of the feed-forward; inner elements per part
  uint32_t part_blocks_;           ///< blocks per part
  std::vector<uint32_t> stop_tokens_;
  uint32_t prompt_stride_;

  std::vector<uint64_t*> sums_;   ///< [ranks] each [2 * layers] vectors in VectorWords order; null
                                  ///< for ranks of other hosts
  uint64_t* outgoing_ = nullptr;  ///< [2 * layers] this rank's terms for ranks of other hosts
  std::vector<uint64_t*> incoming_;  ///< [ranks] each [2 * layers][ranks] vectors, by their sender
  void* qkv_ = nullptr;              ///< [layers][kv heads][sequences][head_words] Stamped
  uint32_t* inner_ = nullptr;        ///< [layers][parts] vectors of the parts' elements
  uint32_t* broken_ = nullptr;
  void* partial_ = nullptr;           ///< [layers][kv heads][sequences][splits][group columns]
  void* partial_weights_ = nullptr;   ///< [layers][kv heads][sequences][splits][group] SplitWeight
  void* best_ = nullptr;              ///< [blocks][sequences] Best
  std::vector<void*> best_of_ranks_;  ///< [ranks] each [ranks][sequences] Best
  uint32_t* pages_ = nullptr;
  float* rotation_ = nullptr;          ///< [positions_max][cosines, sines][dim / 2]
  uint32_t* prompt_ = nullptr;         ///< [sequences][prompt_stride]
  uint32_t* prompt_tokens_ = nullptr;  ///< [sequences]

  Tensor token_t_, position_t_, best_t_, best_of_ranks_t_, broken_t_;
  std::vector<Tensor> sums_t_, qkv_t_, inner_t_, cache_t_, partial_t_;
  std::vector<Tensor> outgoing_t_, incoming_t_;       ///< [2 * layers], between hosts
  std::vector<Event> after_attention_, after_inner_;  ///< [layers] carried
  std::vector<Event> qkv_ready_, attended_;           ///< [layers * kv heads] carried
  std::vector<Event> inner_ready_;                    ///< [layers * parts] carried
  std::vector<Event> outgoing_ready_;                 ///< [2 * layers] carried
  std::vector<Event> sums_arrived_;                   ///< [2 * layers]
  Event logits_ready_, all_ranks_best_, best_taken_, step_ended_;
};

}  // namespace tokenyard::megakernel
