#include "collectives/transports/interconnected_channel.hpp"

#include <cstring>
#include <utility>

namespace tokenyard::collectives {

namespace {

/// Only members announce an address; a longer one is invalid, and then nothing moves.
constexpr size_t kAddressBytesMax = 64 << 10;

}  // namespace

InterconnectedChannel::InterconnectedChannel(std::unique_ptr<TcpChannel> meeting,
                                             Interconnect& network)
    : meeting_(std::move(meeting)), body_(network.channel()) {
  const Greeting greeting{.number = body_->number(), .address_bytes = network.address().size()};
  mine_.resize(sizeof greeting);
  std::memcpy(mine_.data(), &greeting, sizeof greeting);
  mine_.insert(mine_.end(), network.address().begin(), network.address().end());
}

bool InterconnectedChannel::meet() {
  said_ += meeting_->send_some(std::span(mine_).subspan(said_));
  greeting_got_ += meeting_->receive_some(std::span(greeting_).subspan(greeting_got_));
  if (greeting_got_ < sizeof(Greeting)) return false;
  Greeting greeting;
  std::memcpy(&greeting, greeting_.data(), sizeof greeting);
  if (greeting.address_bytes > kAddressBytesMax) return false;
  address_.resize(greeting.address_bytes);
  address_got_ += meeting_->receive_some(std::span(address_).subspan(address_got_));
  if (address_got_ < address_.size() || said_ < mine_.size()) return false;
  body_->connect(address_, greeting.number);
  connected_ = true;
  return true;
}

}  // namespace tokenyard::collectives
