/// The CUDA worlds in a build without CUDA.
#if !TOKENYARD_WITH_CUDA

#include "world/in_process.hpp"
#include "world/processes.hpp"

namespace tokenyard {

namespace {
constexpr const char* kWhyNot =
    "this build has no CUDA support; with nvcc on PATH: pip install . "
    "-Ccmake.define.TOKENYARD_CUDA=ON (C++: cmake -DTOKENYARD_CUDA=ON)";
}

std::vector<std::unique_ptr<World>> in_process_cuda(const std::vector<uint32_t>&, uint32_t,
                                                    const WorldOptions&) {
  throw Unsupported("device 'cuda'", kWhyNot);
}

Hardware cuda_hardware(uint32_t, const Whereabouts&, const WorldOptions&) {
  throw Unsupported("device 'cuda'", kWhyNot);
}

std::shared_ptr<ibgda::GpuMemory> card_registers(const Accelerator&) {
  throw Unsupported("device 'cuda'", kWhyNot);
}

std::string cuda_toolkit() {
  return "";
}

}  // namespace tokenyard

#endif
