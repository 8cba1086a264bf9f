/// A stream of bytes over active messages. Each piece says where in the stream it belongs, so they
/// may overtake one another.
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

  /// From the network. What the other end may not say is dropped.
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

  /// A ring of window_bytes. Its first bytes lie behind its end as well, so that so many that
  /// follow one another always lie in one piece.
  struct AlignedDelete {
    void operator()(std::byte* held) const;
  };
  std::unique_ptr<std::byte[], AlignedDelete> held_;
  uint64_t arrived_ = 0;  ///< all before this
  uint64_t consumed_ = 0;
  uint64_t consumed_published_ = 0;
  std::map<uint64_t, uint64_t> ahead_;  ///< what has arrived beyond a gap: from where, to where
};

}  // namespace tokenyard::ucx
