#include "expert_parallel/low_latency/host/batch.hpp"

#include "expert_parallel/common/expert_map.hpp"

namespace tokenyard::low_latency {

namespace {

/// Consecutive arrays, each aligned like an allocation. Without a base it only computes sizes.
class Pieces {
 public:
  explicit Pieces(std::byte* base = nullptr) : base_(base) {}
  template <class T>
  T* take(uint64_t count) {
    constexpr uint64_t kAlignment = 256;
    const uint64_t at = bytes_;
    bytes_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  uint64_t bytes_ = 0;
};

DispatchOut lay_out(Pieces& pieces, const LowLatencyOptions& options, uint32_t ranks) {
  const uint64_t local_experts = ExpertHomes::of(places_of(options, ranks), ranks).held_at_most();
  const uint64_t slots = uint64_t{ranks} * options.tokens_max;
  const RowLayout fp8 = row_layout(options, LowLatencyRows::fp8);
  DispatchOut out{};
  out.x =
      pieces.take<std::byte>(local_experts * slots * options.hidden * (options.bf16_rows ? 2 : 1));
  out.scales = pieces.take<uint32_t>(local_experts * slots * fp8.scale_words());
  out.source = pieces.take<int32_t>(local_experts * slots);
  out.ranges = pieces.take<RowRange>(local_experts * ranks);
  out.counts = pieces.take<int32_t>(local_experts);
  out.row_slot = pieces.take<int32_t>(slots * options.topk);
  out.choices = pieces.take<int32_t>(uint64_t{options.tokens_max} * options.topk);
  out.weights = pieces.take<float>(uint64_t{options.tokens_max} * options.topk);
  out.weights_stamp = pieces.take<uint32_t>(1);
  return out;
}

PlacedChoices lay_out_choices(Pieces& pieces, const LowLatencyOptions& options) {
  PlacedChoices choices{};
  choices.placed = pieces.take<int64_t>(uint64_t{options.tokens_max} * options.topk);
  choices.lost = pieces.take<int32_t>(options.tokens_max);
  return choices;
}

}  // namespace

uint64_t Batch::bytes(const LowLatencyOptions& options, uint32_t ranks) {
  Pieces pieces;
  lay_out(pieces, options, ranks);
  lay_out_choices(pieces, options);
  return pieces.bytes();
}

uint64_t Batch::combine_bytes(const LowLatencyOptions& options, uint32_t ranks) {
  const uint64_t local_experts = ExpertHomes::of(places_of(options, ranks), ranks).held_at_most();
  return local_experts * ranks * options.tokens_max * options.hidden * 2;
}

Batch::Batch(Accelerator& accelerator, const LowLatencyOptions& options, uint32_t ranks,
             uint32_t number)
    : accelerator_(accelerator),
      number_(number),
      combine_bytes_(combine_bytes(options, ranks)),
      memory_(accelerator, bytes(options, ranks), DeviceMemory::Kind::device) {
  Pieces pieces(memory_.as<std::byte>());
  out_ = lay_out(pieces, options, ranks);
  choices_ = lay_out_choices(pieces, options);
}

void* Batch::combine_buffer() {
  if (!combine_buffer_)
    combine_buffer_.emplace(accelerator_, combine_bytes_, DeviceMemory::Kind::device);
  return combine_buffer_->as<void>();
}

}  // namespace tokenyard::low_latency
