/// A GPU whose kernels drive a network card: they ring its doorbells themselves.
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
  // Rows lie in pinned memory. No card has been met that would read GPU memory.
  bool exports() const override { return false; }
  std::optional<ibgda::DmaBuf> dma_buf(const std::byte*, size_t) const override { return {}; }

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
