#include "bench/device_collectives/nccl_peer.hpp"

#include <dlfcn.h>
#include <fmt/core.h>

#include <cstdlib>

#include "fabric/gather.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::bench {

namespace {

/// Values of nccl.h, which keep their meaning between versions.
constexpr int kFloat32 = 7, kBfloat16 = 9, kSum = 0;

struct UniqueId {
  char bytes[128];
};

/// Makes a GPU's context this thread's: NCCL has a CUDA runtime of its own, which asks the driver.
void use_gpu(int index) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) throw InvalidArgument("nccl", "a CUDA driver", dlerror());
  using Retain = int (*)(void**, int);
  using SetCurrent = int (*)(void*);
  const auto retain = reinterpret_cast<Retain>(dlsym(driver, "cuDevicePrimaryCtxRetain"));
  const auto set_current = reinterpret_cast<SetCurrent>(dlsym(driver, "cuCtxSetCurrent"));
  void* context = nullptr;
  if (retain == nullptr || set_current == nullptr || retain(&context, index) != 0 ||
      set_current(context) != 0)
    throw InternalError(fmt::format("NCCL: the context of GPU {} cannot be used", index));
}

}  // namespace

struct NcclPeer::Library {
  explicit Library(const std::string& path) : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) throw InvalidArgument("nccl", "a library that can be loaded", dlerror());
    find(text_of, "ncclGetErrorString");
    find(unique_id, "ncclGetUniqueId");
    find(init, "ncclCommInitRank");
    find(destroy, "ncclCommDestroy");
    find(all_reduce, "ncclAllReduce");
    find(all_gather, "ncclAllGather");
    find(reduce_scatter, "ncclReduceScatter");
    find(broadcast, "ncclBroadcast");
    find(send, "ncclSend");
    find(receive, "ncclRecv");
    find(group_start, "ncclGroupStart");
    find(group_end, "ncclGroupEnd");
  }

  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(handle, name));
    if (function == nullptr) throw InvalidArgument("nccl", fmt::format("a {}", name), "none");
  }
  void require(int result) const {
    if (result != 0) throw InternalError(fmt::format("NCCL: {}", text_of(result)));
  }

  void* const handle;  ///< never closed: NCCL's threads outlive its communicators
  const char* (*text_of)(int);
  int (*unique_id)(UniqueId*);
  int (*init)(void**, int, UniqueId, int);
  int (*destroy)(void*);
  int (*all_reduce)(const void*, void*, size_t, int, int, void*, void*);
  int (*all_gather)(const void*, void*, size_t, int, void*, void*);
  int (*reduce_scatter)(const void*, void*, size_t, int, int, void*, void*);
  int (*broadcast)(const void*, void*, size_t, int, int, void*, void*);
  int (*send)(const void*, size_t, int, int, void*, void*);
  int (*receive)(void*, size_t, int, int, void*, void*);
  int (*group_start)();
  int (*group_end)();
};

NcclPeer::NcclPeer(World& world, const std::string& library)
    : rank_(world.rank()), ranks_(world.size()), library_(std::make_unique<Library>(library)) {
  // Multicast over NVLink is a service of the machine that not every one grants.
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  use_gpu(accelerator_of(world).device_index());
  UniqueId mine{};
  if (rank_ == 0) library_->require(library_->unique_id(&mine));
  const auto ids = gather(world, mine, "bench: NCCL's id");
  library_->require(
      library_->init(&communicator_, static_cast<int>(ranks_), ids[0], static_cast<int>(rank_)));
}

NcclPeer::~NcclPeer() {
  if (communicator_ != nullptr) library_->destroy(communicator_);
}

void NcclPeer::start(const std::string& operation, const void* input, void* result, uint64_t count,
                     DataType type, Stream stream) {
  const int number = type == DataType::float32 ? kFloat32 : kBfloat16;
  const uint64_t part = count / ranks_;
  const auto at = [&](const void* data, uint32_t rank) {
    return static_cast<const std::byte*>(data) + rank * part * bytes_of(type);
  };
  void* const on = reinterpret_cast<void*>(stream.native);
  if (operation == "all_reduce")
    return library_->require(
        library_->all_reduce(input, result, count, number, kSum, communicator_, on));
  if (operation == "all_gather")
    return library_->require(library_->all_gather(input, result, part, number, communicator_, on));
  if (operation == "reduce_scatter")
    return library_->require(
        library_->reduce_scatter(input, result, part, number, kSum, communicator_, on));
  if (operation == "broadcast")
    return library_->require(
        library_->broadcast(input, result, count, number, 0, communicator_, on));
  if (operation == "barrier")  // As its users make one: an all_reduce of four bytes.
    return library_->require(
        library_->all_reduce(result, result, 1, kFloat32, kSum, communicator_, on));
  library_->require(library_->group_start());
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    library_->require(
        library_->send(at(input, rank), part, number, static_cast<int>(rank), communicator_, on));
    library_->require(library_->receive(const_cast<std::byte*>(at(result, rank)), part, number,
                                        static_cast<int>(rank), communicator_, on));
  }
  library_->require(library_->group_end());
}

}  // namespace tokenyard::bench
