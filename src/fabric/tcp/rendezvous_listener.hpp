/// Rank 0's side of a rendezvous: who has come, and who is turned away. Lives on the I/O thread; a
/// coroutine a connection, all of which keep it alive.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "fabric/tcp/rendezvous.hpp"

namespace tokenyard::tcp {

class RendezvousListener : public std::enable_shared_from_this<RendezvousListener> {
 public:
  /// How long a connection has to say hello.
  static constexpr std::chrono::seconds kHelloMax{5};
  /// How long latecomers are told that the job is complete.
  static constexpr std::chrono::seconds kOpenAfterwards{2};
  /// Connections that have not said hello yet.
  static constexpr uint32_t kUnknownMax = 256;
  static constexpr std::chrono::milliseconds kRestWhenFull{20};

  RendezvousListener(const asio::any_io_executor& executor, net::Listener listener, Attendance self,
                     Progress& progress);

  /// Until every rank has come.
  awaitable<Directory> wait_for_everybody();

 private:
  struct AuthenticatedConnection {
    std::shared_ptr<FrameStream> stream;
    uint16_t listener_port;
  };

  awaitable<void> serve();
  awaitable<void> greet(std::shared_ptr<FrameStream> stream, net::Pending pending);
  /// The only writer to a guest: tells it of every change, and of the end.
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
  std::optional<Directory> directory_;  ///< once everybody has come
  uint64_t changes_ = 0;
  asio::steady_timer change_;  ///< never expires; cancelled at every change
};

}  // namespace tokenyard::tcp
