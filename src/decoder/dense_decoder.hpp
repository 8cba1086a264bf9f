/// A Llama-shaped decoder of dense layers as one graph: a token of each sequence an
/// iteration. tasks/layer.hpp tells its stages.
///
/// Several ranks share a model (tensor parallel): each has its part of the heads, of the
/// feed-forward's inner elements and of the vocabulary. Every product that a block adds to a sum it
/// adds to that sum of every rank, so a stage that follows waits no longer for other ranks than for
/// this one, and all ranks have the same bits: those of one rank alone, if its terms are the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "decoder/decoder_shape.hpp"
#include "decoder/tasks/slices.hpp"
#include "device/numbers.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::megakernel {

struct Best;

/// In this rank's memory; they must stay as long as the graph runs. All BF16. KV heads, inner
/// elements and the head's tokens are this rank's: of rank r of R, the r-th R-th of all. What is
/// tiled lies as tiles.hpp says, as a matrix of which the last dimension are the columns and all
/// others the rows.
struct DecoderWeights {
  struct Layer {
    const BFloat16* attention_norm;  ///< [hidden]
    const BFloat16* qkv;             ///< [kv heads][query heads of it, K, V][dim][hidden], tiled
    const BFloat16* out;             ///< [kv heads][hidden][query heads of it * dim], tiled
    const BFloat16* mlp_norm;        ///< [hidden]
    const BFloat16* gate_up;         ///< [inner][gate, up][hidden], tiled
    const BFloat16* down;            ///< [hidden][inner], tiled
    /// [kv heads][query heads of it, K, V][dim], or null where the model has no biases.
    const BFloat16* qkv_bias = nullptr;
    const BFloat16* q_norm = nullptr;  ///< [dim] of RMSNorm before RoPE, or null
    const BFloat16* k_norm = nullptr;  ///< [dim], or null together with q_norm
    uint32_t window = UINT32_MAX;      ///< latest positions attended to; UINT32_MAX: all
  };
  const BFloat16* embedding;  ///< [vocabulary of all ranks][hidden]
  std::vector<Layer> layers;
  const BFloat16* final_norm;  ///< [hidden]
  const BFloat16* head;        ///< [vocabulary][hidden], tiled
};

struct DecoderOptions {
  uint32_t blocks = 1;  ///< workers of the megakernel
  /// A sequence each, of at least one token: 1, 2, 4 or 8 of them, which share each weight that is
  /// read; alike on all ranks.
  std::vector<std::vector<uint32_t>> prompts;
  std::vector<uint32_t> stop_tokens = {};  ///< any of which ends a sequence; 8 at most
  Graph::Place place = {};                 ///< among the ranks that share the model
};

class DenseDecoder {
 public:
  /// Collective, if there are several ranks: `shape` is of the whole model, alike on all of them.
  DenseDecoder(TensorMemory& memory, const DecoderShape& shape, const DecoderWeights& weights,
               const DecoderOptions& options);

  const Graph& graph() const { return graph_; }
  /// For the megakernel: the largest unit that a task streams.
  uint32_t unit_bytes() const;

  // What a step leaves, in this rank's memory.
  float* logits = nullptr;       ///< [sequences][vocabulary of this rank]
  uint32_t* tokens = nullptr;    ///< [sequences][positions_max + 1] decided, by position
  uint32_t* status = nullptr;    ///< [sequences] a SequenceStatus
  uint32_t* token = nullptr;     ///< [sequences] of the next step
  uint32_t* position = nullptr;  ///< [sequences] likewise
  BFloat16* k_cache =
      nullptr;  ///< [sequences][layers][kv heads of this rank][positions_max][dim], by pages
  BFloat16* v_cache = nullptr;
  /// Words of one rank alone that stages hand on, cleared before the first iteration of an object.
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
    Span operator*(uint32_t each) const { return {begin * each, end * each}; }
  };
  static Span share(uint32_t count, uint32_t index, uint32_t parts);

  template <class T>
  T* carried(size_t count);
  void make_sums();
  void make_prompts(const DecoderOptions& options);
  Tensor given(const std::string& name, const void* at, uint64_t bytes);
  void make_words(const DecoderOptions& options);
  void make_events();
  void project_qkv(uint32_t layer, uint32_t block);
  void attend_split(uint32_t layer, uint32_t block);
  void project_attention(uint32_t layer, uint32_t block);
  void gate_up(uint32_t layer, uint32_t block);
  void project_down(uint32_t layer, uint32_t block);
  void project_logits(uint32_t block);
  void send_best();
  struct LastStage {
    const Best* parts;
    uint32_t part_count;
    uint64_t* sums;
    uint32_t sum_count;
    const uint32_t* broken;
    TaskOptions options;
  };
  LastStage last_stage();
  /// A task whose arguments say what ends a sequence.
  template <class Type>
  void add_last(typename Type::Args args, TaskOptions options);
  void next_token();
  void next_tokens();

  uint32_t head_words() const { return (shape_.group() + 2) * shape_.head_dim; }
  uint32_t group_columns() const { return shape_.group() * shape_.head_dim; }
  uint64_t* sums_of(uint32_t stage) const { return sums_[place_.rank] + stage_words(stage); }
  size_t stage_words(uint32_t stages) const {
    return size_t{stages} * vector_words(sequences_, shape_.hidden);
  }
  /// Where a band of a tiled matrix begins.
  static const BFloat16* band_of(const BFloat16* tiles, uint32_t band, uint32_t columns);
  uint32_t* inner_of(uint32_t layer, uint32_t part) const;
  /// Positions of a split; the last one has the new token as well.
  uint32_t rows_max(const DecoderWeights::Layer& layer) const;
  /// Of all ranks.
  template <class Sums>
  Sums sums_everywhere(uint32_t stage) const;
  /// A task whose arguments differ by kind: `fill` fills them in.
  template <template <class> class Type, class Fill>
  void add_of_kind(Fill fill, TaskOptions options);
  std::vector<Region> everywhere(const Region& region) const;
  std::vector<Signal> to_everybody(Event event) const;
  /// Chunks of the vector that a block carries on, and clears.
  Span chunks_of(uint32_t block) const;
  Region rows_of_sums(uint32_t stage, const Span& rows) const;
  Region read_of_sums(uint32_t stage, const Span& bands, const Span& carried) const;
  /// Terms of a sum after attention, and after the feed-forward: a head's or a part's each, and the
  /// vector carried on.
  uint32_t attention_terms() const { return shape_.kv_heads * place_.ranks + 1; }
  uint32_t inner_terms() const { return parts_ * place_.ranks + 1; }

  TensorMemory& memory_;
  const Graph::Place place_;
  const DecoderShape shape_;  ///< of this rank
  const DecoderWeights weights_;
  Graph graph_;
  uint32_t sequences_, blocks_;
  uint32_t head_blocks_,
      splits_;                ///< blocks of a KV head; of them, those that attend to a sequence
  uint32_t parts_, columns_;  ///< of the feed-forward; inner elements of one
  uint32_t part_blocks_;      ///< blocks of a part
  std::vector<uint32_t> stop_tokens_;
  uint32_t prompt_stride_;

  std::vector<uint64_t*> sums_;  ///< [ranks] each [2 * layers] vectors, as VectorWords lie
  void* qkv_ = nullptr;          ///< [layers][kv heads][sequences][head_words] Stamped
  uint32_t* inner_ = nullptr;    ///< [layers][parts] vectors of the parts' elements
  uint32_t* broken_ = nullptr;
  void* partial_ = nullptr;           ///< [layers][kv heads][sequences][splits][group columns]
  void* partial_weights_ = nullptr;   ///< likewise [group] SplitWeight
  void* best_ = nullptr;              ///< [blocks][sequences] Best
  std::vector<void*> best_of_ranks_;  ///< [ranks] each [ranks][sequences] Best
  uint32_t* pages_ = nullptr;
  float* rotation_ = nullptr;          ///< [positions_max][cosines, sines][dim / 2]
  uint32_t* prompt_ = nullptr;         ///< [sequences][prompt_stride]
  uint32_t* prompt_tokens_ = nullptr;  ///< [sequences]

  Tensor token_t_, position_t_, best_t_, best_of_ranks_t_, broken_t_;
  std::vector<Tensor> sums_t_, qkv_t_, inner_t_, cache_t_, partial_t_;
  std::vector<Event> after_attention_, after_inner_;  ///< [layers] carried
  std::vector<Event> qkv_ready_, attended_;           ///< [layers * kv heads] carried
  std::vector<Event> inner_ready_;                    ///< [layers * parts] carried
  Event logits_ready_, all_ranks_best_, best_taken_, step_ended_;
};

}  // namespace tokenyard::megakernel
