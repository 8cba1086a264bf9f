/// UCX behind the contract of interconnect.hpp: one worker, one endpoint per process that we send
/// to, and two kinds of active messages, each with the number of the channel it is for:
///
///     bytes    a piece of the channel's stream
///     room     the number of its bytes consumed since the start
///
/// Invariant: a sender has at most `window_bytes` under way, and a receiver drops anything beyond,
/// so a receiver's memory is bounded whatever comes. Messages of one endpoint arrive in order.
///
/// Endpoints report errors; in that mode UCX does not use shared memory, for which we have our own
/// transport. A failed endpoint moves nothing more; the control plane decides whether the peer is
/// gone.
#pragma once

#include <ucp/api/ucp.h>

#include <map>
#include <memory>
#include <vector>

#include "collectives/transports/interconnect.hpp"

namespace tokenyard::ucx {

class UcxChannel;

class UcxInterconnect final : public collectives::Interconnect {
 public:
  UcxInterconnect();
  ~UcxInterconnect() override;
  UcxInterconnect(const UcxInterconnect&) = delete;

  const std::vector<std::byte>& address() const override { return address_; }
  std::unique_ptr<collectives::NumberedChannel> channel() override;
  void poll() override;
  bool prepare_to_sleep() override;
  int descriptor() const override { return descriptor_; }

  static constexpr size_t piece_bytes = size_t{32} << 10;
  static constexpr size_t window_bytes = size_t{512} << 10;

  /// For the channels.
  struct Endpoint {
    ucp_ep_h handle = nullptr;
    bool failed = false;
  };
  /// A message under way, in memory that stays until UCX has finished with it.
  struct Outgoing {
    uint64_t header[2];  ///< channel number; position or bytes consumed
    std::byte bytes[piece_bytes];
    UcxInterconnect* owner = nullptr;
  };
  Endpoint& endpoint(std::span<const std::byte> address);
  void listen(UcxChannel& channel);
  void stop_listening(const UcxChannel& channel);
  /// Returns null if the maximum number of messages is under way.
  Outgoing* take_outgoing();
  enum class Kind : unsigned { bytes = 1, room = 2 };
  void send(Endpoint& endpoint, Kind kind, Outgoing& message, size_t bytes);

 private:
  static constexpr size_t outgoing_max = 256;

  ucs_status_t deliver(Kind kind, const void* header, size_t header_bytes, const void* bytes,
                       size_t count);
  template <Kind kind>
  void handle_messages();
  void release();

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::vector<std::byte> address_;
  int descriptor_ = -1;
  std::map<std::vector<std::byte>, std::unique_ptr<Endpoint>> endpoints_;
  std::map<uint64_t, UcxChannel*> channels_;
  std::vector<std::unique_ptr<Outgoing>> outgoing_;
  std::vector<Outgoing*> idle_;
};

}  // namespace tokenyard::ucx
