/// Bindings of a dense decoder's graph; see tokenyard.megakernel.DenseDecoder.
#include "decoder/dense_decoder.hpp"
#include "fabric/agreement.hpp"
#include "fabric/world_access.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "device/accelerator.hpp"
#include "registration.hpp"
#include "task_graph.hpp"

using namespace nanobind::literals;

namespace tokenyard::python {

namespace {

const BFloat16* matrix(const Piece& piece, size_t elements, const char* what) {
  if (piece.bytes != elements * sizeof(BFloat16))
    throw InvalidArgument(what, fmt::format("{} elements of BF16", elements),
                          fmt::format("{} bytes", piece.bytes));
  const std::string& dtype = piece.allocation->dtype;
  if (!dtype.empty() && dtype != "bfloat16" && dtype != "uint16")
    throw InvalidArgument(what, "elements of bfloat16", dtype);
  return reinterpret_cast<const BFloat16*>(piece.address);
}

/// Returns the elements of a tiled matrix; see tiles.hpp.
const BFloat16* tiles(const Piece& piece, size_t rows, uint32_t columns, const char* what) {
  return matrix(piece, mk::tiled_elements(rows, columns), what);
}

/// A layer's pieces in the order of tokenyard.megakernel.LayerPieces; optional ones may be absent.
using Pieces = std::vector<std::optional<Piece>>;
constexpr size_t kNeeded = 6, kPieces = 9;

/// Returns an optional vector; null if the model lacks it.
const BFloat16* optional_vector(const std::optional<Piece>& piece, size_t elements,
                                const char* what) {
  return piece ? matrix(*piece, elements, what) : nullptr;
}

/// A decoder and all memory that its tasks use.
class Decoder {
 public:
  Decoder(const Memory& memory, const mk::DecoderShape& shape, std::vector<Piece> outer,
          std::vector<Pieces> layers, std::vector<uint32_t> windows,
          const mk::DecoderOptions& options)
      : memory_(memory.held()),
        outer_(std::move(outer)),
        layers_(std::move(layers)),
        windows_(std::move(windows)) {
    shape.check(options.blocks, options.place.ranks);
    shape_ = shape.of_rank(options.place.ranks);
    blocks_ = options.blocks;
    sequences_ = options.prompts.size();
    const mk::DecoderWeights weights = weights_of(shape.vocabulary);
    const Callers::Turn turn = memory_->turn();
    nb::gil_scoped_release unlocked;
    decoder_ = std::make_unique<mk::DenseDecoder>(memory_->memory, shape, weights, options);
  }

  const mk::DenseDecoder& get() const { return *decoder_; }
  /// Returns the graph, which keeps the weights alive, too.
  TaskGraph graph() const {
    TaskGraph graph{.graph = decoder_->graph(), .memories = {memory_}};
    for (const Piece& piece : outer_) graph.keep(piece);
    for (const Pieces& layer : layers_)
      for (const std::optional<Piece>& piece : layer)
        if (piece) graph.keep(*piece);
    return graph;
  }
  const mk::DecoderShape& shape() const { return shape_; }
  uint32_t blocks() const { return blocks_; }
  size_t sequences() const { return sequences_; }
  Piece piece(void* at, size_t bytes, const char* dtype) const {
    auto* const begin = static_cast<std::byte*>(at);
    const Allocation whole{.begin = begin,
                           .bytes = bytes,
                           .guard = 0,
                           .dtype = dtype,
                           .of_ranks = {},
                           .rank = memory_->world->rank()};
    return {begin, bytes, memory_, std::make_shared<const Allocation>(whole)};
  }

 private:
  mk::DecoderWeights weights_of(size_t vocabulary) const {
    const uint32_t hidden = shape_.hidden, inner = shape_.inner;
    const size_t columns = size_t{shape_.query_heads} * shape_.head_dim;
    const size_t rows = columns + 2 * size_t{shape_.kv_heads} * shape_.head_dim;
    if (outer_.size() != 3 || layers_.size() != shape_.layers || windows_.size() != shape_.layers)
      throw InvalidArgument("weights", fmt::format("3 and those of {} layers", shape_.layers),
                            fmt::format("{} and {}", outer_.size(), layers_.size()));
    mk::DecoderWeights weights{.embedding = matrix(outer_[0], vocabulary * hidden, "embedding"),
                               .layers = {},
                               .final_norm = matrix(outer_[1], hidden, "final_norm"),
                               .head = tiles(outer_[2], shape_.vocabulary, hidden, "head")};
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Pieces& layer = layers_[i];
      if (layer.size() != kPieces || !std::all_of(layer.begin(), layer.begin() + kNeeded,
                                                  [](const auto& piece) { return !!piece; }))
        throw InvalidArgument("weights of a layer", "6, and biases and norms or none",
                              fmt::format("{} pieces", layer.size()));
      weights.layers.push_back({.attention_norm = matrix(*layer[0], hidden, "attention_norm"),
                                .qkv = tiles(*layer[1], rows, hidden, "qkv"),
                                .out = tiles(*layer[2], size_t{shape_.kv_heads} * hidden,
                                             shape_.group() * shape_.head_dim, "out"),
                                .mlp_norm = matrix(*layer[3], hidden, "mlp_norm"),
                                .gate_up = tiles(*layer[4], size_t{2} * inner, hidden, "gate_up"),
                                .down = tiles(*layer[5], hidden, inner, "down"),
                                .qkv_bias = optional_vector(layer[6], rows, "qkv_bias"),
                                .q_norm = optional_vector(layer[7], shape_.head_dim, "q_norm"),
                                .k_norm = optional_vector(layer[8], shape_.head_dim, "k_norm"),
                                .window = windows_[i]});
    }
    return weights;
  }

  std::shared_ptr<HeldMemory> memory_;
  mk::DecoderShape shape_{};  ///< of this rank
  uint32_t blocks_ = 0;
  size_t sequences_ = 0;
  std::vector<Piece> outer_;
  std::vector<Pieces> layers_;
  std::vector<uint32_t> windows_;
  std::unique_ptr<mk::DenseDecoder> decoder_;
};

/// Returns `asked`, or, if that is 0, the number that a GPU has room for; on hosts as many per KV
/// head as there are sequences, at least two.
uint32_t blocks_for(const Memory& memory, const mk::DecoderShape& shape, uint32_t asked,
                    uint32_t sequences) {
  if (asked != 0) return asked;
  const World& world = *memory.held()->world;
  const Accelerator& accelerator = accelerator_of(world);
  // Between hosts, one multiprocessor runs the network block.
  const uint32_t reserved = spans_hosts(world) ? 1 : 0;
  return accelerator.kind() == AcceleratorKind::gpu
             ? shape.blocks_of(accelerator.capacity().multiprocessors - reserved, world.size())
             : shape.blocks_of(std::max<uint32_t>(2, sequences) * shape.kv_heads, world.size());
}

std::unique_ptr<Decoder> make_decoder(const Memory& memory, const mk::DecoderShape& shape,
                                      const std::vector<Piece>& outer,
                                      const std::vector<Pieces>& layers,
                                      const std::vector<uint32_t>& windows, uint32_t blocks,
                                      const std::vector<std::vector<uint32_t>>& prompts,
                                      const std::vector<uint32_t>& stop_tokens) {
  const World& world = *memory.held()->world;
  return std::make_unique<Decoder>(
      memory, shape, outer, layers, windows,
      mk::DecoderOptions{
          .blocks = blocks_for(memory, shape, blocks, static_cast<uint32_t>(prompts.size())),
          .prompts = prompts,
          .stop_tokens = stop_tokens,
          .place = {.rank = world.rank(), .ranks = world.size()}});
}

}  // namespace

void register_dense_decoder(nb::module_& m) {
  nb::class_<mk::RopeScaling>(m, "RopeScaling", "Llama 3's scaling of RoPE's low frequencies.")
      .def(
          "__init__",
          [](mk::RopeScaling* self, float factor, float low, float high, uint32_t positions) {
            if (!(factor > 0) || !(high > low))
              throw InvalidArgument("rope_scaling", "a factor above 0, and high above low",
                                    fmt::format("{}, {} and {}", factor, high, low));
            *self = {.factor = factor, .low = low, .high = high, .positions = positions};
          },
          nb::kw_only(), "factor"_a, "low"_a, "high"_a, "positions"_a);
  nb::class_<mk::DecoderShape>(m, "DecoderShape", "The shape of a dense decoder.")
      .def(
          "__init__",
          [](mk::DecoderShape* self, uint32_t vocabulary, uint32_t hidden, uint32_t layers,
             uint32_t query_heads, uint32_t kv_heads, uint32_t head_dim, uint32_t inner,
             uint32_t page_tokens, uint32_t positions_max, float epsilon, float rope_base,
             std::optional<mk::RopeScaling> rope_scaling) {
            *self = {.vocabulary = vocabulary,
                     .hidden = hidden,
                     .layers = layers,
                     .query_heads = query_heads,
                     .kv_heads = kv_heads,
                     .head_dim = head_dim,
                     .inner = inner,
                     .page_tokens = page_tokens,
                     .positions_max = positions_max,
                     .epsilon = epsilon,
                     .rope_base = rope_base,
                     .rope_scaling = rope_scaling.value_or(mk::RopeScaling{})};
          },
          nb::kw_only(), "vocabulary"_a, "hidden"_a, "layers"_a, "query_heads"_a, "kv_heads"_a,
          "head_dim"_a, "inner"_a, "page_tokens"_a, "positions_max"_a, "epsilon"_a, "rope_base"_a,
          "rope_scaling"_a = nb::none())
      .def("blocks_of", &mk::DecoderShape::blocks_of, "multiprocessors"_a, "ranks"_a = 1)
      .def("check", &mk::DecoderShape::check, "blocks"_a, "ranks"_a = 1);
  nb::class_<Decoder>(m, "DenseDecoder", "See tokenyard.megakernel.DenseDecoder.")
      .def_static("make", &make_decoder, "memory"_a, "shape"_a, nb::kw_only(), "outer"_a,
                  "layers"_a, "windows"_a, "blocks"_a, "prompts"_a, "stop_tokens"_a)
      .def_prop_ro("graph", &Decoder::graph)
      .def_prop_ro("blocks", &Decoder::blocks)
      .def_prop_ro("unit_bytes", [](const Decoder& self) { return self.get().unit_bytes(); })
      .def_prop_ro("logits",
                   [](const Decoder& self) {
                     return self.piece(self.get().logits,
                                       self.sequences() * self.shape().vocabulary * sizeof(float),
                                       "float32");
                   })
      .def_prop_ro("tokens",
                   [](const Decoder& self) {
                     return self.piece(
                         self.get().tokens,
                         self.sequences() * (self.shape().positions_max + 1) * sizeof(uint32_t),
                         "uint32");
                   })
      .def_prop_ro("status", [](const Decoder& self) {
        return self.piece(self.get().status, self.sequences() * sizeof(uint32_t), "uint32");
      });
}

}  // namespace tokenyard::python
