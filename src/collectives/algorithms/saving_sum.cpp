#include "collectives/algorithms/saving_sum.hpp"

#include <cstdint>

#include "collectives/algorithms/wide_vectors.hpp"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace tokenyard::collectives {

namespace {

#ifdef __x86_64__

/// Both ranks execute the same instructions on `first` and `second`, whichever of them is `mine`;
/// so of two NaNs both keep the same one.
template <typename T>
TOKENYARD_WIDE_VECTORS void saving_sum(std::byte* saved, std::byte* mine, const std::byte* first,
                                       const std::byte* second, size_t bytes, size_t ahead) {
  typedef T Line __attribute__((vector_size(saving_line_bytes), aligned(1), may_alias));
  for (size_t at = 0; at < bytes; at += saving_line_bytes) {
    __builtin_prefetch(mine + at + ahead, 0, 2);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(saved + at), _mm512_loadu_si512(mine + at));
    *reinterpret_cast<Line*>(mine + at) =
        *reinterpret_cast<const Line*>(first + at) + *reinterpret_cast<const Line*>(second + at);
  }
}

SavingSum for_this_type(DataType type) {
  switch (type) {
    case DataType::uint8:
    case DataType::int8:
      return saving_sum<uint8_t>;
    case DataType::uint16:
    case DataType::int16:
      return saving_sum<uint16_t>;
    case DataType::uint32:
    case DataType::int32:
      return saving_sum<uint32_t>;
    case DataType::uint64:
    case DataType::int64:
      return saving_sum<uint64_t>;
    case DataType::float32:
    case DataType::complex64:
      return saving_sum<float>;
    case DataType::float64:
    case DataType::complex128:
      return saving_sum<double>;
    case DataType::boolean:
    case DataType::float16:
    case DataType::bfloat16:
    case DataType::float8_e4m3fn:
    case DataType::float8_e5m2:
      return nullptr;
  }
  return nullptr;
}

#endif

}  // namespace

SavingSum saving_sum_of([[maybe_unused]] DataType type, [[maybe_unused]] ReduceOp op) {
#ifdef __x86_64__
  const bool adds = op == ReduceOp::sum || op == ReduceOp::average;
  if (adds && has_wide_vectors()) return for_this_type(type);
#endif
  return nullptr;
}

}  // namespace tokenyard::collectives
