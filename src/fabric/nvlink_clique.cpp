#include "fabric/nvlink_clique.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>

namespace tokenyard {

namespace {

// Of the stable ABI of NVML (nvml.h).
using Device = void*;
struct FabricInfo {
  std::array<unsigned char, 16> cluster;
  int status;
  unsigned clique;
  unsigned char state;
};
constexpr unsigned char kCompleted = 3;  // NVML_GPU_FABRIC_STATE_COMPLETED

template <class... Arguments>
bool call(void* library, const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
  return function != nullptr && function(arguments...) == 0;
}

}  // namespace

std::string clique_of(const std::string& gpu_uuid) {
  const auto close = [](void* library) {
    (void)call(library, "nvmlShutdown");
    dlclose(library);
  };
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  const std::unique_ptr<void, decltype(close)> owner(library, close);
  Device device = nullptr;
  FabricInfo info{};
  if (!call(library, "nvmlInit_v2") ||
      !call(library, "nvmlDeviceGetHandleByUUID", gpu_uuid.c_str(), &device) ||
      !call(library, "nvmlDeviceGetGpuFabricInfo", device, &info))
    return {};
  const bool is_alone =
      std::ranges::all_of(info.cluster, [](unsigned char each) { return each == 0; });
  if (info.state != kCompleted || info.status != 0 || is_alone) return {};
  return fmt::format("{:02x}.{}", fmt::join(info.cluster, ""), info.clique);
}

}  // namespace tokenyard
