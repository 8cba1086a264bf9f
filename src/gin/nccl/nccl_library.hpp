/// NCCL's calls, from the library that the process has loaded, or that the system's loader finds: a
/// trainer brings its own, and two in one process would not know of each other.
#pragma once

#include <dlfcn.h>
#include <nccl.h>
#include <nccl_device/host.h>

#include <string>

#include "tokenyard/error.hpp"

namespace tokenyard::gin {

/// Returns "2.32.3" for NCCL's number of it.
inline std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

inline std::string built_for() {
  return nccl_version_text(NCCL_VERSION_CODE);
}

class NcclLibrary {
 public:
  /// Throws Unsupported if there is none, or not the version whose headers this was compiled with.
  NcclLibrary() {
    handle_ = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr)
      throw Unsupported("network \"gin\"", "NCCL " + built_for() + " is missing: " + dlerror());
    find(get_version, "ncclGetVersion");
    int version = 0;
    if (get_version(&version) != ncclSuccess) version = 0;
    if (version != NCCL_VERSION_CODE)
      throw Unsupported("network \"gin\"",
                        "the NCCL that runs is " + nccl_version_text(version) +
                            ", and the plug-in was built for " + built_for() +
                            ": build it with the headers of the former (cmake -DTOKENYARD_GIN=ON "
                            "-DNCCL_INCLUDE=FOLDER)");
    find(get_unique_id, "ncclGetUniqueId");
    find(comm_init, "ncclCommInitRankConfig");
    find(comm_abort, "ncclCommAbort");
    find(comm_error, "ncclCommGetAsyncError");
    find(last_error, "ncclGetLastError");
    find(properties, "ncclCommQueryProperties");
    find(window_register, "ncclCommWindowRegister");
    find(device_create, "ncclDevCommCreate");
  }
  NcclLibrary(const NcclLibrary&) = delete;
  NcclLibrary& operator=(const NcclLibrary&) = delete;

  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclCommGetAsyncError) comm_error = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclCommQueryProperties) properties = nullptr;
  decltype(&ncclCommWindowRegister) window_register = nullptr;
  decltype(&ncclDevCommCreate) device_create = nullptr;

  /// Returns NCCL's words for an error of this communicator.
  std::string text(ncclComm_t communicator, ncclResult_t error) const {
    const char* const last = last_error(communicator);
    const std::string text = "NCCL's error " + std::to_string(static_cast<int>(error));
    return last == nullptr || *last == 0 ? text : text + ": " + last;
  }

 private:
  template <class Call>
  void find(Call& call, const char* name) {
    call = reinterpret_cast<Call>(dlsym(handle_, name));
    if (call == nullptr)
      throw Unsupported("network \"gin\"", std::string("the NCCL that runs has no ") + name);
  }

  void* handle_;  // Never closed: NCCL's threads may outlive this.
};

}  // namespace tokenyard::gin
