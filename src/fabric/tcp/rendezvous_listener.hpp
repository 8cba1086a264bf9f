/// Rank 0's side of a rendezvous: admits the ranks of the job and refuses all other connections.
/// Runs on the I/O thread, with one coroutine per connection; each of them keeps it alive.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "fabric/tcp/rendezvous.hpp"

namespace tokenyard::tcp {

class RendezvousListener : public std::enable_shared_from_this<RendezvousListener> {
 public:
  /// How long a connection may take to say hello.
  static constexpr std::chrono::seconds kHelloMax{5};
  /// How long latecomers are refused before the listener closes.
  static constexpr std::chrono::seconds kOpenAfterwards{2};
  /// Limit on connections that have not said hello yet.
  static constexpr uint32_t kUnknownMax = 256;
  /// Pause after a connection that exceeds this limit.
  static constexpr std::chrono::milliseconds kRestWhenFull{20};

  RendezvousListener(const asio::any_io_executor& executor, net::Listener listener, Attendance self,
                     Progress& progress);

  /// Returns the directory once every rank is connected.
  awaitable<Directory> wait_for_everybody();

 private:
  struct AuthenticatedConnection {
    std::shared_ptr<FrameStream> stream;
    uint16_t listener_port;
  };

  awaitable<void> serve();
  awaitable<void> greet(std::shared_ptr<FrameStream> stream, net::Pending pending);
  /// Sends an admitted rank every change and, last, the directory; nothing else writes to it.
  awaitable<void> keep_informed(std::shared_ptr<FrameStream> stream);
  awaitable<void> turn_away(std::shared_ptr<FrameStream> stream, Refusal reason);
  awaitable<void> close_later();

  std::optional<Refusal> judge(const Frame& frame, const Hello& hello) const;
  std::vector<uint32_t> missing() const;
  void changed();

  const asio::any_io_executor executor_;
  net::Listener listener_;
  Attendance self_;
  Progress& progress_;
  std::map<uint32_t, AuthenticatedConnection> connections_;
  std::optional<Directory> directory_;  ///< set once every rank is connected
  uint64_t changes_ = 0;
  asio::steady_timer change_;  ///< never expires; cancelled at every change
};

}  // namespace tokenyard::tcp
