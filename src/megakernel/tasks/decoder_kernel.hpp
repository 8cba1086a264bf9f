#pragma once

#include "megakernel/tasks/decoder_list.hpp"

namespace tokenyard::megakernel {

DEFINE_MEGAKERNEL(decoder_kernel, DecoderTasks)
DEFINE_MEGAKERNEL(placed_decoder_kernel, Placed<DecoderTasks>)

}  // namespace tokenyard::megakernel
