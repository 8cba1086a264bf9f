/// One connection of the mesh: queues outgoing frames, and puts incoming messages into the mailbox
/// until the peer says goodbye or is lost. Only the I/O thread uses it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "fabric/mailbox.hpp"
#include "fabric/tcp/frame_stream.hpp"

namespace tokenyard::tcp {

class Link : public std::enable_shared_from_this<Link> {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  Link(std::shared_ptr<FrameStream> stream, uint32_t peer, uint64_t session, Mailbox& mailbox);

  /// Starts to read.
  void start();
  void send(Bytes frame);
  /// Writes the queued frames, then `goodbye`, and calls `gone` once the peer has closed.
  void leave(Bytes goodbye, std::function<void()> gone);
  /// Takes what has arrived, then marks the peer lost.
  void expel();
  void close();

 private:
  awaitable<void> read();
  awaitable<void> write();
  void ended(PeerState how);

  std::shared_ptr<FrameStream> stream_;
  const uint32_t peer_;
  const uint64_t session_;
  Mailbox& mailbox_;
  std::deque<Bytes> queue_;
  bool writing_ = false;
  bool leaving_ = false;
  bool ended_ = false;
  std::function<void()> gone_;
};

}  // namespace tokenyard::tcp
