/// A byte stream over active messages. Each piece carries its position in the stream, so pieces may
/// overtake one another.
#pragma once

#include <map>
#include <memory>

#include "ucx/ucx_interconnect.hpp"

namespace tokenyard::ucx {

class UcxChannel final : public collectives::NumberedChannel {
 public:
  explicit UcxChannel(UcxInterconnect& network);
  ~UcxChannel() override;
  UcxChannel(const UcxChannel&) = delete;

  uint64_t number() const override { return number_; }
  void connect(std::span<const std::byte> address, uint64_t number) override;

  size_t send_some(std::span<const std::byte> bytes) override;
  size_t receive_some(std::span<std::byte> into) override;
  std::span<const std::byte> arrived(size_t wanted) override;
  void consume(size_t bytes) override;
  uint64_t bytes_sent() const override { return sent_; }

  /// Called by the network. Data that the other end may not send are dropped.
  void take_bytes(uint64_t position, std::span<const std::byte> bytes);
  void take_room(uint64_t consumed);

 private:
  void store(uint64_t position, std::span<const std::byte> bytes);
  void publish_room();

  UcxInterconnect& network_;
  const uint64_t number_;
  uint64_t others_number_ = 0;
  UcxInterconnect::Endpoint* endpoint_ = nullptr;

  uint64_t sent_ = 0;
  uint64_t others_consumed_ = 0;

  /// A ring of window_bytes. Its first bytes are repeated behind its end, so that
  /// kArrivedInOnePiece bytes from any position are contiguous.
  struct AlignedDelete {
    void operator()(std::byte* held) const;
  };
  std::unique_ptr<std::byte[], AlignedDelete> held_;
  uint64_t arrived_ = 0;  ///< all bytes before this position
  uint64_t consumed_ = 0;
  uint64_t consumed_published_ = 0;
  std::map<uint64_t, uint64_t> ahead_;  ///< begin and end of ranges that arrived beyond a gap
};

}  // namespace tokenyard::ucx
