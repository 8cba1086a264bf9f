/// A library that NVTX loads (NVTX_INJECTION64_PATH): writes "+domain name" for each range that
/// begins and "-" for each that ends to the file `ranges` of the current folder.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <string>

namespace {

std::FILE* out() {
  static std::FILE* const file = std::fopen("ranges", "w");
  return file;
}

nvtxDomainHandle_t create(const char* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(new std::string(name));
}

int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  std::fprintf(out(), "+%s %s\n", reinterpret_cast<const std::string*>(domain)->c_str(),
               attributes->message.ascii);
  std::fflush(out());
  return 0;
}

int pop(nvtxDomainHandle_t) {
  std::fputs("-\n", out());
  std::fflush(out());
  return 0;
}

template <class Function>
void set(NvtxFunctionTable table, unsigned index, Function function) {
  *table[index] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0)
    return 0;
  set(table, NVTX_CBID_CORE2_DomainCreateA, create);
  set(table, NVTX_CBID_CORE2_DomainRangePushEx, push);
  set(table, NVTX_CBID_CORE2_DomainRangePop, pop);
  return 1;
}
