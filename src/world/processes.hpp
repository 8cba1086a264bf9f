/// Jobs and worlds with one process per rank, on hosts or GPUs.
#pragma once

#include <memory>
#include <string>

#include "fabric/host/process_fabric.hpp"
#include "fabric/meeting_place.hpp"
#include "ibgda/gpu_memory.hpp"
#include "tokenyard/job.hpp"
#include "tokenyard/world.hpp"
#include "world/parts.hpp"

namespace tokenyard {

/// Founds the job of connect_world, or joins it in place of a lost rank. Throws what that throws.
std::shared_ptr<Job> connect_job(const MeetingPlace& where, const WorldOptions& options,
                                 bool joins = false);

/// Returns this rank's GPU, and how it reaches the others. Throws Unsupported in a build without
/// CUDA.
Hardware cuda_hardware(uint32_t local_rank, const Whereabouts& where, const WorldOptions& options);

/// Returns what maps a card's registers for kernels of a GPU. Throws as above.
std::shared_ptr<ibgda::GpuMemory> card_registers(const Accelerator& accelerator);

}  // namespace tokenyard
