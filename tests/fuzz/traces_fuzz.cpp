// A trace of another rank, and what is computed from it.
#include "fuzz/archives.hpp"
#include "megakernel/trace/trace_codec.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tokenyard;
  using namespace tokenyard::megakernel;
  static const std::vector<std::byte> empty = TraceCodec::encode({});
  fuzz::Input input(data, size);
  const auto bytes = fuzz::archive_of(empty, input.rest());
  try {
    const Trace trace = TraceCodec::decode(bytes, 1);
    fuzz::require_same_bytes(TraceCodec::encode(trace), bytes, "a trace reads as it was written");
    (void)trace.measured_costs();
    (void)trace.perfetto();
  } catch (const InternalError&) {
    // It is no trace.
  }
  return 0;
}
