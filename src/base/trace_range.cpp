#include "base/trace_range.hpp"

#if TOKENYARD_WITH_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace tokenyard {

#if TOKENYARD_WITH_NVTX

namespace {

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t handle = nvtxDomainCreateA("tokenyard");
  return handle;
}

}  // namespace

TraceRange::TraceRange(const char* name) noexcept {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainRangePushEx(domain(), &attributes);
}

TraceRange::~TraceRange() {
  nvtxDomainRangePop(domain());
}

bool TraceRange::available() noexcept {
  return true;
}

#else

TraceRange::TraceRange(const char*) noexcept {}
TraceRange::~TraceRange() = default;

bool TraceRange::available() noexcept {
  return false;
}

#endif

}  // namespace tokenyard
