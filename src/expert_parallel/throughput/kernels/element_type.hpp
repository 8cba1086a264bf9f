/// The element types of rows and scales, as the words that ranks exchange name them.
#pragma once

#include <cstdint>

#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::throughput {

/// Dispatch moves bits and reads none, whatever the type; combine adds up bf16, fp16 and fp32.
enum class ElementType : uint8_t { bf16, fp16, fp32, fp8_e4m3, bytes };

/// Kernels do not look at scales, but ranks whose types differ are refused.
enum class ScaleType : uint8_t { words, fp32, int32, bytes };

}  // namespace tokenyard::throughput
