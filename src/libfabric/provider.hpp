/// One endpoint of libfabric, as far as the transport needs it. Tests put themselves between the
/// two, to deliver in other orders than a provider here ever does.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fabric/network/gpu_export.hpp"

namespace tokenyard::libfabric {

/// Something under way. Its memory stays until it has completed.
struct Operation {
  enum class Kind : uint8_t { send, receive, write };

  std::array<void*, 8> room{};  ///< for the provider (FI_CONTEXT2)
  Kind kind = Kind::send;
  uint32_t peer = 0;
};

struct Completion {
  Operation* operation = nullptr;  ///< null: a peer's write with `data` has landed
  uint32_t data = 0;
  size_t bytes = 0;  ///< received
  int error = 0;     ///< 0: none
};

/// Memory that the provider may use; forgotten with this.
class Region {
 public:
  virtual ~Region() = default;
  uint64_t key = 0;            ///< by which peers write to it
  uint64_t base = 0;           ///< where it begins for them
  void* descriptor = nullptr;  ///< by which this rank names it
};

enum class Posted : uint8_t {
  yes,
  full,    ///< there is no room now
  failed,  ///< see Provider::why
};

class Provider {
 public:
  struct Facts {
    std::string name, interface;
    /// Whether sends come after earlier writes to the same peer, and writes after one another.
    bool ordered = false;
    bool tells_data = false;  ///< writes may carry a number of 32 bits that their target is told
    size_t message_max = 0;   ///< bytes of a write
    size_t pieces_max = 1;    ///< sources of a write
    size_t receives_max = 0;  ///< that may be posted at once
    std::string why_no_gpu_memory = "there is no GPU";  ///< empty: it may take memory of the GPU
  };

  virtual ~Provider() = default;
  virtual const Facts& facts() const = 0;
  virtual std::vector<std::byte> address() const = 0;
  /// Returns the number of a peer for the calls below. Throws OsError.
  virtual uint64_t insert(std::span<const std::byte> address) = 0;
  /// `from_peers`: whether peers may write to it; else it is for messages. Throws OsError.
  virtual std::unique_ptr<Region> register_memory(std::span<std::byte> memory, bool from_peers) = 0;
  /// Registers memory of `ProviderOptions::gpu`, to which peers may write. Throws OsError.
  virtual std::unique_ptr<Region> register_gpu_memory(std::span<std::byte> memory) = 0;

  virtual Posted send(uint64_t peer, std::span<const std::byte> message, const Region& region,
                      Operation& operation) = 0;
  virtual Posted receive(std::span<std::byte> into, const Region& region, Operation& operation) = 0;
  struct Write {
    std::array<std::span<const std::byte>, 2> pieces{};
    std::array<const Region*, 2> regions{};
    uint64_t target, key;
    std::optional<uint32_t> data{};
    bool delivered = false;  ///< completes once it has landed
  };
  virtual Posted write(uint64_t peer, const Write& write, Operation& operation) = 0;
  /// Returns the number of completions. A failed one is the last.
  virtual size_t poll(std::span<Completion> completions) = 0;
  /// Returns the reason of the last failure.
  virtual std::string why() const = 0;
  /// Sleeps until `poll` may find something, `waker` is readable or the time has passed.
  virtual void sleep(std::chrono::nanoseconds at_most, int waker) = 0;
  /// Ends what is under way. Regions end next, then this.
  virtual void stop() = 0;
};

struct ProviderOptions {
  std::string provider;   ///< empty: the first that will do
  std::string interface;  ///< name or address; empty: that of `address`
  std::string address;    ///< of this rank; empty: unknown
  bool offsets = false;   ///< demands regions whose addresses for peers begin with 0
  std::shared_ptr<const GpuExport> gpu = {};  ///< whose memory is registered, too; null: none
};

/// Opens an endpoint. Throws Unsupported, which names what there is, or OsError.
std::unique_ptr<Provider> open_provider(const ProviderOptions& options);

}  // namespace tokenyard::libfabric
