#include "bench/megakernel_decode/separate_stages.hpp"
#include "fabric/world_access.hpp"

#include <algorithm>

#include "tokenyard/error.hpp"

namespace tokenyard::bench {

namespace mk = tokenyard::megakernel;

SeparateStages::SeparateStages(World& world, mk::TensorMemory& memory,
                               const mk::DenseDecoder& decoder, uint32_t tokens, const Rings& rings)
    : world_(world),
      memory_(memory),
      decoder_(decoder),
      tokens_(tokens),
      cell_(accelerator_of(world), abort_flag_of(world)) {
  const bool host = accelerator_of(world).kind() != AcceleratorKind::gpu;
  const mk::Graph& graph = decoder.graph();
  uint32_t blocks = 0;
  for (const mk::Graph::TaskNode& task : graph.tasks())
    blocks = std::max(blocks, task.worker.value_or(0) + 1);
  const uint32_t depth = rings.ring_units != 0 ? rings.ring_units : host ? 3 : 6;
  shape_ = {.workers = blocks,
            .compute_warps = host ? 1u : 8u,
            .streams = {.unit_bytes = decoder.unit_bytes(), .depth = depth, .in_flight = 0}};
  // Prefetching a long cache leaves less room.
  if (rings.ring_units == 0)
    shape_.streams.depth = mk::ring_units_that_fit(graph, shape_, accelerator_of(world).capacity());
  shape_.streams.in_flight = std::min(rings.in_flight, shape_.streams.depth);
  const std::span graphs(&graph, 1);
  const std::span shapes(&shape_, 1);
  program_ = mk::make_program(graphs, 0, shape_, mk::compile(graphs, shapes));
  mk::check_capacity(program_, shape_, graph, accelerator_of(world).capacity());
  tables_ = std::make_unique<mk::DeviceTables>(world, program_, graph, shape_, 0);
  lay_out_packets();
  tables_->describe(params_);
  params_.rank = 0;
  params_.ranks = 1;
  params_.run = 1;
  params_.workers = blocks;
  params_.compute_warps = shape_.compute_warps;
  params_.tasks = static_cast<uint32_t>(graph.tasks().size());
  params_.loop_event = mk::kNoEvent;
  params_.streams = program_.streams;
  params_.scratch_bytes = program_.scratch_bytes;
  params_.ahead_bytes = program_.ahead_bytes;
  params_.wait_context = cell_.wait_context(world.timeout());
  accelerator_of(world).prepare(stage_kernel.entry);
  recording_ = std::make_unique<Recording>(accelerator_of(world),
                                           [this](Stream stream) { enqueue(stream); });
}

void SeparateStages::lay_out_packets() {
  const std::vector<uint32_t>& queues = program_.queues;
  for (uint32_t block = 0; block < shape_.workers; ++block)
    blocks_.resize(std::max<size_t>(blocks_.size(), queues[block + 1] - queues[block]), 0);
  std::vector<std::byte> packets(blocks_.size() * shape_.workers * kStagePacketBytes);
  for (uint32_t block = 0; block < shape_.workers; ++block)
    for (uint32_t at = queues[block]; at < queues[block + 1]; ++at) {
      const uint32_t stage = at - queues[block];
      const uint32_t from = program_.positions[at] * mk::kPacketAlignment;
      const uint32_t bytes = program_.positions[at + 1] * mk::kPacketAlignment - from;
      if (bytes > kStagePacketBytes || blocks_[stage] != block)
        throw InternalError("a stage must use the first blocks, with small packets");
      std::copy_n(program_.packets.begin() + from, bytes,
                  packets.begin() + (size_t{stage} * shape_.workers + block) * kStagePacketBytes);
      ++blocks_[stage];
    }
  const TensorView there = memory_.local(packets.size());
  memory_.write(there, ConstTensorView::of(std::span(packets)));
  packets_ = there.as<std::byte>();
}

void SeparateStages::enqueue(Stream stream) const {
  LaunchShape launch_shape{.blocks = 0,
                           .warps = shape_.warps(accelerator_of(world_)),
                           .extra_shared_bytes = program_.tail_bytes(shape_.compute_warps),
                           .cooperative = false,
                           .overlap_previous = true};
  StageParams params{.run = params_, .packets = nullptr};
  for (params.run.first = 0; params.run.first < tokens_; ++params.run.first)
    for (size_t stage = 0; stage < blocks_.size(); ++stage) {
      launch_shape.blocks = blocks_[stage];
      params.packets = packets_ + stage * shape_.workers * kStagePacketBytes;
      launch(accelerator_of(world_), stage_kernel, launch_shape, stream, params);
    }
}

double SeparateStages::run_ms() {
  // A replay repeats the recorded iterations, so their counters must start again.
  for (const auto& [begin, bytes] : decoder_.words)
    accelerator_of(world_).fill(begin, 0, bytes, {});
  std::byte* window = nullptr;
  memory_.read(TensorView::bytes_at(&window, sizeof(window)),
               ConstTensorView::bytes_at(params_.windows.bases.table, sizeof(window)));
  accelerator_of(world_).fill(window, 0, params_.windows.layout.bytes(), {});
  mk::await_stream(world_, {}, "cleared words");
  const double taken = recording_->run_ms();
  if (cell_.failed()) throw InternalError("a kernel's wait failed");
  return taken;
}

}  // namespace tokenyard::bench
