/// The driver of networks over NCCL: communicators, and the card's kernel over GIN itself. Compiled
/// with the headers of one version of NCCL, whose device code belongs to that version alone.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <nccl_device.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "base/environment.hpp"
#include "device/device.hpp"
#include "gin/card_queue.hpp"
#include "gin/gin_driver.hpp"
#include "gin/gin_plugin.hpp"
#include "gin/nccl/nccl_library.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::gin {

namespace {

/// GIN as the card uses it: a queue of this rank is the context of its number, and in it the peer's
/// queue pair.
class NcclGin {
 public:
  __device__ NcclGin(const ncclDevComm& communicator, ncclWindow_t window, uint32_t context)
      : gin_(communicator, static_cast<int>(context)),
        world_(ncclTeamWorld(communicator)),
        window_(window) {}

  __device__ void put(const CardPeer& peer, uint64_t target, uint64_t source, uint64_t bytes) {
    gin_.put(world_, static_cast<int>(peer.member), window_, target, window_, source, bytes);
  }
  __device__ void signal(const CardPeer& peer, uint64_t word, uint64_t addend, SignalKind) {
    gin_.signal(world_, static_cast<int>(peer.member),
                ncclGin_StrongVASignalAdd{window_, word, addend});
  }
  __device__ bool signal_behind_all(const CardPeer& peer, uint64_t word, uint64_t addend) {
    signal(peer, word, addend, SignalKind::strong);
    return true;
  }
  __device__ void get(const CardPeer& peer, uint64_t word, uint64_t to) {
    gin_.get(world_, static_cast<int>(peer.member), window_, word, window_, to, sizeof(uint64_t));
  }
  __device__ void begin_flush(const CardPeer& peer, bool after_get) {
    cycles_ = after_get ? kCyclesAfterGet : kCycles;
    gin_.flushAsync(world_, peer.member, &request_);
  }
  __device__ bool flushed() {
    return gin_.wait(request_, ncclCoopThread{}, ncclGin_None{}, cuda::memory_order_acquire,
                     cycles_) == ncclSuccess;
  }

 private:
  // Per look: some 2 us and 20 ms. After a get, NCCL's wait first posts a flush of its own to its
  // CPU thread, and does so again in each look.
  static constexpr uint64_t kCycles = 4000, kCyclesAfterGet = 40'000'000;

  ncclGin gin_;
  const ncclTeam world_;
  const ncclWindow_t window_;
  ncclGinRequest_t request_{};
  uint64_t cycles_ = kCycles;
};

struct NcclParams {
  CardParams card;
  ncclDevComm communicator;
  ncclWindow_t window;
};

__device__ void nccl_card(const NcclParams& params) {
  const uint32_t queue = block::index() * CardParams::kWarps + warp::index();
  if (warp::lane() != 0 || queue >= params.card.queues) return;
  NcclGin gin(params.communicator, params.window, params.card.pairs[queue]->number);
  CardQueue<NcclGin>(params.card, queue, gin).work();
}

}  // namespace

TOKENYARD_DEFINE_KERNEL(nccl_card_kernel, nccl_card, NcclParams, NoShared, CardParams::kWarps * 32)

namespace {

void check_cuda(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw OsError(call, static_cast<int>(error), cudaGetErrorString(error));
}

/// Makes a GPU the calling thread's, as long as this lives.
class OnGpu {
 public:
  explicit OnGpu(int device) {
    cudaGetDevice(&before_);
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
  }
  ~OnGpu() { cudaSetDevice(before_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

 private:
  int before_ = 0;
};

std::string type_text(ncclGinType_t type) {
  switch (static_cast<int>(type)) {
    case NCCL_GIN_TYPE_PROXY:
      return "its proxy";
    case NCCL_GIN_TYPE_GDAKI:
      return "the GPU itself (GDAKI)";
    default:
      return "type " + std::to_string(static_cast<int>(type));
  }
}

class NcclCommunicator final : public GinCommunicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclLibrary> nccl, const CommunicatorPlace& place)
      : nccl_(std::move(nccl)), place_(place) {
    const OnGpu on_gpu(place_.device);
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
               "cudaStreamCreateWithFlags");
    // Loads the kernel before others wait for one another.
    cudaFuncAttributes attributes{};
    check_cuda(cudaFuncGetAttributes(&attributes, nccl_card_kernel_gpu_entry()),
               "cudaFuncGetAttributes");
  }
  ~NcclCommunicator() override {
    // Not its farewell, which waits for others: all that counts has been settled.
    if (communicator_ != nullptr) nccl_->comm_abort(communicator_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  bool join() override {
    const OnGpu on_gpu(place_.device);
    while (is_ready()) {
      switch (step_) {
        case Step::init:
          init();
          break;
        case Step::properties:
          require_gin();
          break;
        case Step::device:
          create_device();
          break;
        case Step::window:
          register_window();
          break;
        case Step::joined:
          return true;
      }
      step_ = static_cast<Step>(static_cast<int>(step_) + 1);
    }
    return false;
  }

  std::string way() const override {
    return "NCCL " + built_for() + " through " + type_text(type_);
  }

  void run(const LaunchShape& shape, const CardParams& card) override {
    const OnGpu on_gpu(place_.device);
    const NcclParams params{card, device_, window_};
    void* arguments[] = {const_cast<NcclParams*>(&params)};
    check_cuda(cudaLaunchKernel(nccl_card_kernel_gpu_entry(), dim3(shape.blocks),
                                dim3(shape.warps * 32), arguments, 0, stream_),
               "cudaLaunchKernel");
    // Sleeps between looks: a kernel of the card lasts for some 100 us at least.
    cudaError_t state = cudaErrorNotReady;
    while ((state = cudaStreamQuery(stream_)) == cudaErrorNotReady)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    check_cuda(state, "the card's kernel");
  }

  std::string error() override {
    ncclResult_t error = ncclSuccess;
    nccl_->comm_error(communicator_, &error);
    if (error == ncclSuccess || error == ncclInProgress) return {};
    return nccl_->text(communicator_, error);
  }

 private:
  enum class Step { init, properties, device, window, joined };

  void require(ncclResult_t result, const char* call) const {
    if (result != ncclSuccess && result != ncclInProgress)
      throw OsError(call, static_cast<int>(result), nccl_->text(communicator_, result));
  }
  /// Returns whether the call before is done.
  bool is_ready() const {
    if (communicator_ == nullptr) return true;
    ncclResult_t error = ncclSuccess;
    require(nccl_->comm_error(communicator_, &error), "ncclCommGetAsyncError");
    require(error, "NCCL's set-up");
    return error == ncclSuccess;
  }
  void init() {
    ncclUniqueId id;
    static_assert(sizeof id == std::tuple_size_v<CommunicatorId>);
    std::memcpy(&id, place_.id.data(), sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = "tokenyard";
    if (place_.traffic_class >= 0) config.trafficClass = place_.traffic_class;
    require(nccl_->comm_init(&communicator_, static_cast<int>(place_.members), id,
                             static_cast<int>(place_.member), &config),
            "ncclCommInitRankConfig");
  }
  void require_gin() {
    ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
    require(nccl_->properties(communicator_, &properties), "ncclCommQueryProperties");
    type_ = properties.ginType;
    if (type_ == NCCL_GIN_TYPE_NONE)
      throw Unsupported("network \"gin\"",
                        "NCCL " + built_for() +
                            " finds no way for device-side networking between all ranks here; "
                            "NCCL_DEBUG=INFO says why");
    if (properties.ginMinStride > static_cast<int>(place_.stride))
      throw Unsupported("network \"gin\"",
                        "NCCL " + built_for() +
                            " connects only ranks of one place on their hosts here; use "
                            "\"gin:rail\"");
  }
  void create_device() {
    ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    requirements.ginContextCount = static_cast<int>(place_.queues_per_peer);
    requirements.ginConnectionType =
        place_.stride == 1 ? NCCL_GIN_CONNECTION_FULL : NCCL_GIN_CONNECTION_CUSTOM_STRIDE;
    requirements.ginCustomStride = static_cast<int>(place_.stride);
    if (place_.traffic_class >= 0) requirements.ginTrafficClass = place_.traffic_class;
    require(nccl_->device_create(communicator_, &requirements, &device_), "ncclDevCommCreate");
  }
  void register_window() {
    if (static_cast<uint32_t>(device_.ginContextCount) < place_.queues_per_peer)
      throw Unsupported("network \"gin\"", "NCCL gives " + std::to_string(device_.ginContextCount) +
                                               " contexts, and TOKENYARD_NETWORK_QUEUES asks for " +
                                               std::to_string(place_.queues_per_peer));
    require(nccl_->window_register(communicator_, place_.arena, place_.arena_bytes, &window_,
                                   NCCL_WIN_STRICT_ORDERING),
            "ncclCommWindowRegister");
  }

  const std::shared_ptr<NcclLibrary> nccl_;
  const CommunicatorPlace place_;
  cudaStream_t stream_ = nullptr;
  Step step_ = Step::init;
  ncclComm_t communicator_ = nullptr;
  ncclGinType_t type_ = NCCL_GIN_TYPE_NONE;
  ncclDevComm device_{};
  ncclWindow_t window_ = nullptr;
};

class NcclDriver final : public GinDriver {
 public:
  void check(const Accelerator& accelerator) override {
    if (accelerator.kind() != AcceleratorKind::gpu)
      throw Unsupported("network \"gin\"", "its kernels need a GPU");
    // The card counts on queues of so many operations.
    const std::string size = nccl_queue_size().value_or("");
    const int operations = std::atoi(size.c_str());
    if (operations > 0 && operations < static_cast<int>(kOperations))
      throw InvalidArgument("NCCL_GIN_PROXY_QUEUE_SIZE", "at least " + std::to_string(kOperations),
                            size);
    if (!nccl_) nccl_ = std::make_shared<NcclLibrary>();
  }
  uint32_t version() const override { return NCCL_VERSION_CODE; }
  CommunicatorId make_id() override {
    ncclUniqueId id;
    if (const ncclResult_t result = nccl_->get_unique_id(&id); result != ncclSuccess)
      throw OsError("ncclGetUniqueId", static_cast<int>(result), nccl_->text(nullptr, result));
    CommunicatorId bytes;
    std::memcpy(bytes.data(), &id, sizeof id);
    return bytes;
  }
  std::unique_ptr<GinCommunicator> communicator(const CommunicatorPlace& place) override {
    return std::make_unique<NcclCommunicator>(nccl_, place);
  }

 private:
  std::shared_ptr<NcclLibrary> nccl_;
};

}  // namespace

}  // namespace tokenyard::gin

extern "C" {
extern const uint32_t tokenyard_gin_version;
const uint32_t tokenyard_gin_version = tokenyard::gin::kGinVersion;
tokenyard::gin::GinDriver* tokenyard_gin_driver() {
  return new tokenyard::gin::NcclDriver;
}
}
