#pragma once

#include "megakernel/tasks/decoder_list.hpp"

namespace tokenyard::megakernel {

DEFINE_MEGAKERNEL(decoder_kernel, DecoderTasks)

}  // namespace tokenyard::megakernel
