/// NCCL beside ours in the same run: one rank's communicator, of the library that is there when the
/// benchmark runs. The few functions that are used are declared here, so no build needs NCCL.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/accelerator.hpp"
#include "tokenyard/tensor.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::bench {

class NcclPeer {
 public:
  /// Collective over the world, a GPU per rank. `library`: a name or path of libnccl.so.2. Throws
  /// InvalidArgument if it cannot be loaded.
  NcclPeer(World& world, const std::string& library);
  ~NcclPeer();
  NcclPeer(const NcclPeer&) = delete;
  NcclPeer& operator=(const NcclPeer&) = delete;

  /// Enqueues an operation of the benchmark. `count`: elements of the whole tensor. Throws
  /// InternalError with NCCL's words.
  void start(const std::string& operation, const void* input, void* result, uint64_t count,
             DataType type, Stream stream);

 private:
  struct Library;

  const uint32_t rank_, ranks_;
  const std::unique_ptr<Library> library_;
  void* communicator_ = nullptr;
};

}  // namespace tokenyard::bench
