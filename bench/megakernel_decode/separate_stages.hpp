/// Runs a decoder's graph as one kernel per stage, with all stages of some tokens in one CUDA
/// graph.
#pragma once

#include <memory>
#include <vector>

#include "bench/megakernel_decode/recording.hpp"
#include "bench/megakernel_decode/stage_kernel.hpp"
#include "decoder/dense_decoder.hpp"
#include "fabric/abort_flag.hpp"
#include "megakernel/device_tables.hpp"

namespace tokenyard::bench {

class SeparateStages {
 public:
  struct Rings {
    uint32_t in_flight, ring_units;
  };
  SeparateStages(World& world, megakernel::TensorMemory& memory,
                 const megakernel::DenseDecoder& decoder, uint32_t tokens, const Rings& rings);

  /// Decodes the tokens from the decoder's current state; returns the device time.
  double run_ms();

 private:
  void lay_out_packets();
  void enqueue(Stream stream) const;

  World& world_;
  megakernel::TensorMemory& memory_;
  const megakernel::DenseDecoder& decoder_;
  uint32_t tokens_;
  std::vector<uint32_t> blocks_;  ///< [stages] number of blocks with a task
  std::byte* packets_ = nullptr;  ///< [stages][workers][kStagePacketBytes]
  ErrorRecord cell_;
  megakernel::Shape shape_;
  megakernel::Program program_;
  std::unique_ptr<megakernel::DeviceTables> tables_;
  megakernel::RunParams params_{};
  std::unique_ptr<Recording> recording_;
};

}  // namespace tokenyard::bench
