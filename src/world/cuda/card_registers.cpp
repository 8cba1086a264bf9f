/// A GPU whose kernels drive a network card: they ring its doorbells themselves.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "device/cuda/runtime.hpp"
#include "ibgda/gpu_memory.hpp"
#include "tokenyard/error.hpp"
#include "world/processes.hpp"

namespace tokenyard {

namespace {

class CardRegisters final : public ibgda::GpuMemory {
 public:
  explicit CardRegisters(int device) : device_(device) {}

  std::string pci() const override {
    std::array<char, 32> bus{};
    cuda::check(cudaDeviceGetPCIBusId(bus.data(), bus.size(), device_), "cudaDeviceGetPCIBusId");
    std::string path = "/sys/bus/pci/devices/";
    for (const char* letter = bus.data(); *letter != '\0'; ++letter)
      path += static_cast<char>(std::tolower(static_cast<unsigned char>(*letter)));
    std::error_code error;
    const std::filesystem::path real = std::filesystem::canonical(path, error);
    return error ? std::string() : real.string();
  }
  int device() const override { return device_; }
  std::string why_no_dma_buf() const override {
    if (handle_of_range() == nullptr) return "the CUDA driver exports no dma-buf";
    if (value_of(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) == 0)
      return "the GPU or its driver exports no dma-buf (it needs NVIDIA's open kernel modules)";
    return {};
  }
  std::string why_unordered() const override {
    if (value_of(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) <
        CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)
      return "the GPU does not see a card's writes in order";
    return {};
  }
  std::optional<DmaBuf> dma_buf(const std::byte* memory, size_t bytes) const override {
    const cuda::OnDevice on(device_);
    cudaPointerAttributes facts{};
    cuda::check(cudaPointerGetAttributes(&facts, memory), "cudaPointerGetAttributes");
    if (facts.type != cudaMemoryTypeDevice) return std::nullopt;
    // The range is of whole pages of the host.
    const auto begin = reinterpret_cast<uintptr_t>(memory) / kPage * kPage;
    const auto end = (reinterpret_cast<uintptr_t>(memory) + bytes + kPage - 1) / kPage * kPage;
    int descriptor = -1;
    const CUresult result =
        handle_of_range()(&descriptor, begin, end - begin, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (result != CUDA_SUCCESS) {
      throw OsError("cuMemGetHandleForAddressRange", static_cast<int>(result),
                    "the driver exports no dma-buf of this memory");
    }
    return DmaBuf{.descriptor = FileDescriptor(descriptor),
                  .offset = reinterpret_cast<uintptr_t>(memory) - begin};
  }

  std::byte* map_registers(std::byte* registers, size_t) override {
    const cuda::OnDevice on(device_);
    std::byte* const page = page_of(registers);
    cuda::check(cudaHostRegister(page, kPage, cudaHostRegisterMapped | cudaHostRegisterIoMemory),
                "cudaHostRegister of a card's registers");
    void* mapped = nullptr;
    cuda::check(cudaHostGetDevicePointer(&mapped, page, 0), "cudaHostGetDevicePointer");
    return static_cast<std::byte*>(mapped) + (registers - page);
  }
  void unmap_registers(std::byte* registers) override {
    const cuda::OnDevice on(device_);
    cuda::check(cudaHostUnregister(page_of(registers)), "cudaHostUnregister");
  }

 private:
  static constexpr size_t kPage = 4096;
  /// Returns a call of the driver as of CUDA 11.7, the first with dma-bufs; null: it has none.
  template <class Call>
  static Call entry(const char* name) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t result =
        cudaGetDriverEntryPointByVersion(name, &address, 11070, cudaEnableDefault, &found);
    if (result == cudaSuccess && found == cudaDriverEntryPointSuccess)
      return reinterpret_cast<Call>(address);
    cudaGetLastError();
    return nullptr;
  }
  /// Returns the value of an attribute; 0 where the driver does not know it.
  int value_of(CUdevice_attribute which) const {
    const auto attribute = entry<decltype(&cuDeviceGetAttribute)>("cuDeviceGetAttribute");
    int value = 0;
    return attribute != nullptr && attribute(&value, which, device_) == CUDA_SUCCESS ? value : 0;
  }
  static decltype(&cuMemGetHandleForAddressRange) handle_of_range() {
    return entry<decltype(&cuMemGetHandleForAddressRange)>("cuMemGetHandleForAddressRange");
  }
  static std::byte* page_of(std::byte* registers) {
    return registers - reinterpret_cast<uintptr_t>(registers) % kPage;
  }

  const int device_;
};

}  // namespace

std::shared_ptr<ibgda::GpuMemory> card_registers(const Accelerator& accelerator) {
  return std::make_shared<CardRegisters>(accelerator.device_index());
}

}  // namespace tokenyard
