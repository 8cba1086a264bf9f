#include "collectives/engine/streaming_copy.hpp"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tokenyard::collectives {

#ifdef __SSE2__

void copy_streaming(void* into, const void* from, size_t bytes) {
  auto* out = static_cast<char*>(into);
  const auto* in = static_cast<const char*>(from);
  const size_t before_line = (64 - reinterpret_cast<uintptr_t>(out) % 64) % 64;
  if (bytes < before_line + 64) {
    if (bytes > 0) std::memcpy(out, in, bytes);
    return;
  }
  std::memcpy(out, in, before_line);
  out += before_line, in += before_line, bytes -= before_line;
  for (; bytes >= 64; bytes -= 64, out += 64, in += 64) {
    const auto* line = reinterpret_cast<const __m128i*>(in);
    const __m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1);
    const __m128i c = _mm_loadu_si128(line + 2), d = _mm_loadu_si128(line + 3);
    auto* to = reinterpret_cast<__m128i*>(out);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  std::memcpy(out, in, bytes);
}

void end_streaming() {
  _mm_sfence();
}

#else

void copy_streaming(void* into, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(into, from, bytes);
}
void end_streaming() {}

#endif

}  // namespace tokenyard::collectives
