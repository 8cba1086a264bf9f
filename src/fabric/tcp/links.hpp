/// The I/O thread of a mesh and the connections that it serves. Any thread may call its functions.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fabric/mailbox.hpp"
#include "fabric/tcp/link.hpp"
#include "fabric/tcp/progress.hpp"
#include "fabric/tcp/rendezvous.hpp"

namespace tokenyard::tcp {

class Links {
 public:
  /// Starts the rendezvous with the other ranks; poll `assembled` for its end.
  Links(const Rendezvous& where, Mailbox& mailbox);
  /// Says goodbye to every peer, and waits up to kGoodbyeMax until they have closed.
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  /// Returns whether every peer is connected. Throws the rendezvous's error if it has failed.
  bool assembled() const;
  void send(uint32_t to, Frame frame);
  /// See Mesh::expel.
  void expel(uint32_t peer);
  const Progress& progress() const { return progress_; }

 private:
  /// Longest wait for peers to close: a stopped one never does.
  static constexpr std::chrono::milliseconds kGoodbyeMax{300};

  awaitable<void> assemble();
  awaitable<void> connect_to(uint32_t rank, Endpoint listener);
  awaitable<void> accept_higher_ranks();
  awaitable<void> greet(std::shared_ptr<FrameStream> stream, net::Pending pending);
  void adopt(uint32_t rank, std::shared_ptr<FrameStream> stream);
  Frame introduction() const;
  void say_goodbye();

  const Rendezvous where_;
  Mailbox& mailbox_;
  Progress progress_;
  uint64_t session_ = 0;

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  net::Listener listener_;
  asio::steady_timer all_here_;  ///< never expires; cancelled when the last peer is connected
  std::map<uint32_t, std::shared_ptr<Link>> links_;  ///< only the I/O thread uses it

  mutable std::mutex mutex_;
  bool assembled_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace tokenyard::tcp
