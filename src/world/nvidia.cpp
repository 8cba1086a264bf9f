#include "world/nvidia.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/environment.hpp"
#include "fabric/nvlink_clique.hpp"

namespace tokenyard {

namespace {

/// A shared library that may be absent.
class Library {
 public:
  explicit Library(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) why_not_ = dlerror();
  }
  ~Library() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  explicit operator bool() const { return handle_ != nullptr; }
  const std::string& why_not() const { return why_not_; }
  /// Calls a function and returns whether it returned 0, its success code; false if the function
  /// does not exist.
  template <class... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    using Function = int (*)(Arguments...);
    const auto function = reinterpret_cast<Function>(dlsym(handle_, name));
    return function != nullptr && function(arguments...) == 0;
  }

 private:
  void* handle_;
  std::string why_not_;
};

// Constants of the stable ABIs of NVML and the driver (nvml.h, cuda.h).
constexpr int kP2pRead = 0;
constexpr int kP2pNvlink = 2;
constexpr unsigned kLinksMax = 18;
constexpr unsigned kLinkSpeed = 164;        // NVML_FI_DEV_NVLINK_GET_SPEED: 10^6 bytes per second
constexpr unsigned kUnsignedInt = 1;        // NVML_VALUE_TYPE_UNSIGNED_INT
constexpr int kDescriptorsSupported = 103;  // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED

using Device = void*;
struct Memory {
  unsigned long long total, free, used;
};

/// nvmlFieldValue_t.
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency_us;
  unsigned type;
  int status;  ///< 0: success
  union {
    double real;
    unsigned number;
    unsigned long long bits;
  } value;
};

/// Returns the bytes per second of one direction of a link; 0 if the driver does not state it.
double link_rate(const Library& nvml, Device device, unsigned link) {
  FieldValue speed{};
  speed.field = kLinkSpeed;
  speed.scope = link;
  speed.status = -1;
  const bool stated = nvml.call("nvmlDeviceGetFieldValues", device, 1, &speed) &&
                      speed.status == 0 && speed.type == kUnsignedInt;
  return stated ? speed.value.number * 1e6 : 0;
}

struct ActiveLinks {
  unsigned count = 0;
  double bytes_per_second = 0;
};

ActiveLinks active_links(const Library& nvml, Device device) {
  ActiveLinks active;
  for (unsigned link = 0; link < kLinksMax; ++link) {
    unsigned state = 0;
    if (!nvml.call("nvmlDeviceGetNvLinkState", device, link, &state) || state == 0) continue;
    ++active.count;
    active.bytes_per_second += link_rate(nvml, device, link);
  }
  return active;
}

std::string link_between(const Library& nvml, Device from, Device to, unsigned active) {
  int status = -1;  // 0: OK
  if (nvml.call("nvmlDeviceGetP2PStatus", from, to, kP2pNvlink, &status) && status == 0) {
    return fmt::format("NV{}", active);
  }
  status = -1;
  if (nvml.call("nvmlDeviceGetP2PStatus", from, to, kP2pRead, &status) && status == 0) {
    return "PCIe peer";
  }
  return "none";
}

std::vector<GpuFacts> gpus_of(const Library& nvml) {
  unsigned count = 0;
  if (!nvml.call("nvmlDeviceGetCount_v2", &count)) return {};
  std::vector<Device> devices(count);
  std::vector<GpuFacts> gpus(count);
  for (unsigned index = 0; index < count; ++index) {
    GpuFacts& gpu = gpus[index];
    gpu.index = index;
    if (!nvml.call("nvmlDeviceGetHandleByIndex_v2", index, &devices[index])) {
      gpu.name = "a GPU that does not answer";
      continue;
    }
    std::array<char, 96> text{};
    if (nvml.call("nvmlDeviceGetName", devices[index], text.data(), unsigned{text.size()})) {
      gpu.name = text.data();
    }
    if (nvml.call("nvmlDeviceGetUUID", devices[index], text.data(), unsigned{text.size()})) {
      gpu.uuid = text.data();
      gpu.domain = clique_of(gpu.uuid);
    }
    Memory memory{};
    if (nvml.call("nvmlDeviceGetMemoryInfo", devices[index], &memory)) {
      gpu.memory_bytes = memory.total;
    }
  }
  for (unsigned from = 0; from < count; ++from) {
    if (devices[from] == nullptr) continue;
    const ActiveLinks active = active_links(nvml, devices[from]);
    gpus[from].link_bytes_per_second = active.bytes_per_second;
    for (unsigned to = 0; to < count; ++to) {
      const bool known = devices[to] != nullptr;
      gpus[from].links.push_back(
          from == to
              ? "-"
              : (known ? link_between(nvml, devices[from], devices[to], active.count) : "none"));
    }
  }
  return gpus;
}

/// Returns NVML's spelling of a GPU's sixteen bytes.
std::string uuid_text(std::span<const unsigned char> bytes) {
  std::string text = "GPU-";
  for (size_t at = 0; at < bytes.size(); ++at) {
    if (at == 4 || at == 6 || at == 8 || at == 10) text += '-';
    text += fmt::format("{:02x}", bytes[at]);
  }
  return text;
}

/// Finds the GPUs that CUDA shows to this process, which CUDA_VISIBLE_DEVICES may number otherwise
/// than NVML and may leave out. The UUID is the only name that both use; cuDeviceGetUuid returns
/// that of the whole GPU for a part of one (MIG), too.
void ask_cuda(NvidiaFacts& facts) {
  facts.visible_devices = cuda_visible_devices();
  const Library driver("libcuda.so.1");
  if (!driver) {
    facts.cuda_why_not = driver.why_not();
    return;
  }
  // Fails, too, if every GPU is hidden.
  int count = 0;
  const bool answers = driver.call("cuInit", 0u) && driver.call("cuDeviceGetCount", &count);
  if (!answers || count == 0) {
    facts.cuda_why_not = "CUDA shows this process none of the machine's GPUs";
    return;
  }
  for (int index = 0; index < count; ++index) {
    int device = 0;
    std::array<unsigned char, 16> bytes{};
    if (!driver.call("cuDeviceGet", &device, index) ||
        !driver.call("cuDeviceGetUuid", bytes.data(), device))
      continue;
    const auto gpu =
        std::find_if(facts.gpus.begin(), facts.gpus.end(), [&](const GpuFacts& candidate) {
          return candidate.cuda_index < 0 && candidate.uuid == uuid_text(bytes);
        });
    if (gpu != facts.gpus.end()) gpu->cuda_index = index;
  }
  int device = 0;
  int supported = 0;
  if (!driver.call("cuDeviceGet", &device, 0) ||
      !driver.call("cuDeviceGetAttribute", &supported, kDescriptorsSupported, device)) {
    facts.descriptors_why_not = "the driver does not answer";
    return;
  }
  facts.descriptors = supported != 0;
  if (!facts.descriptors) {
    facts.descriptors_why_not = "GPU 0 cannot export memory as file descriptors";
  }
}

}  // namespace

NvidiaFacts ask_nvidia() {
  NvidiaFacts facts;
  const Library nvml("libnvidia-ml.so.1");
  if (!nvml) {
    facts.missing = NvidiaFacts::Missing::library;
    facts.why_not = "no NVIDIA driver: " + nvml.why_not();
    return facts;
  }
  if (!nvml.call("nvmlInit_v2")) {
    facts.missing = NvidiaFacts::Missing::driver;
    facts.why_not = "the NVIDIA driver's library is present, but the driver does not answer";
    return facts;
  }
  std::array<char, 96> version{};
  if (nvml.call("nvmlSystemGetDriverVersion", version.data(), unsigned{version.size()})) {
    facts.driver = version.data();
  }
  facts.gpus = gpus_of(nvml);
  if (facts.gpus.empty()) {
    facts.missing = NvidiaFacts::Missing::gpu;
    facts.why_not = "the driver sees no GPU";
  }
  nvml.call("nvmlShutdown");
  if (!facts.gpus.empty()) ask_cuda(facts);
  return facts;
}

}  // namespace tokenyard
