#include "fabric/nvlink/gpu_link.hpp"

#include <fmt/format.h>

#include "device/cuda/accelerator.hpp"
#include "device/cuda/runtime.hpp"

namespace tokenyard::nvlink {

namespace {

bool has(cudaDeviceP2PAttr attribute, int from, int to) {
  int value = 0;
  cuda::check(cudaDeviceGetP2PAttribute(&value, attribute, from, to), "cudaDeviceGetP2PAttribute");
  return value != 0;
}

}  // namespace

int visible_device(const std::string& uuid) {
  for (int device = 0; device < cuda::gpu_count(); ++device)
    if (cuda::gpu_uuid(device) == uuid) return device;
  return -1;
}

PeerReach reach_of(int device, const std::string& peer_uuid) {
  const int peer = visible_device(peer_uuid);
  if (peer == device) return {.reach = Reach::load_store, .how = "same GPU", .why_not = ""};
  if (peer < 0) {
    return {.reach = Reach::load_store,
            .how = fmt::format("CUDA peer access to {} (hidden here)", peer_uuid),
            .why_not = ""};
  }
  if (!has(cudaDevP2PAttrAccessSupported, device, peer)) {
    return {.reach = Reach::none,
            .how = "",
            .why_not = fmt::format("GPUs #{} and #{} have no peer access", device, peer)};
  }
  // Without native atomics, an atomic on a peer's word is not atomic.
  if (!has(cudaDevP2PAttrNativeAtomicSupported, device, peer)) {
    return {.reach = Reach::none,
            .how = "",
            .why_not = fmt::format("GPUs #{} and #{} have no atomics over their link (no NVLink)",
                                   device, peer)};
  }
  return {.reach = Reach::load_store,
          .how = fmt::format("CUDA peer access with atomics (GPU #{})", peer),
          .why_not = ""};
}

}  // namespace tokenyard::nvlink
