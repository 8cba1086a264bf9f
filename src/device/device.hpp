/// The vocabulary that kernels are written in: one set of words with two bodies, one for GPUs in
/// device/cuda and one for the host in device/host. A kernel includes this header, and none of
/// CUDA's.
#pragma once

#include "device/block.hpp"
#include "device/bulk.hpp"
#include "device/dependent_launch.hpp"
#include "device/identity.hpp"
#include "device/kernel.hpp"
#include "device/matrix.hpp"
#include "device/memory.hpp"
#include "device/mutated.hpp"
#include "device/numbers.hpp"
#include "device/peer.hpp"
#include "device/time.hpp"
#include "device/vector.hpp"
#include "device/wait.hpp"
#include "device/warp.hpp"
