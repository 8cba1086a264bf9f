#include "fabric/tcp/rendezvous.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "fabric/tcp/rendezvous_listener.hpp"

namespace tokenyard::tcp {

namespace {

constexpr std::chrono::milliseconds kPauseMin{10};
constexpr std::chrono::milliseconds kPauseMax{200};

/// Replaces addresses that are valid only on rank 0's host by the one at which we reached rank 0.
void localise(Directory& directory, const asio::ip::address& rank0) {
  for (Endpoint& listener : directory.listeners) {
    const bool beside_rank0 = listener.address().is_loopback() && !rank0.is_loopback();
    if (listener.address().is_unspecified() || beside_rank0) listener.address(rank0);
  }
}

/// Makes one attempt: connects, says hello, and waits for rank 0's decision. Returns nothing if the
/// caller should try again.
awaitable<std::optional<Directory>> attend_once(const Attendance& self, Progress& progress) {
  Socket socket = co_await net::dial(self.where.host, self.where.port, std::nullopt);
  FrameStream stream(std::move(socket));
  const Frame greeting = hello(self);
  co_await stream.write(greeting);
  const FrameRules rules{.job = std::nullopt, .payload_max = kWhatMax * uint64_t{1024}};
  for (;;) {
    const Frame frame = co_await stream.read(rules);
    switch (static_cast<FrameKind>(frame.header.kind)) {
      case FrameKind::progress:
        progress.missing(read_progress(frame));
        break;
      case FrameKind::connect_reply: {
        Directory directory = read_connect_reply(frame);
        if (directory.listeners.size() != self.where.size) {
          throw net::ProtocolError("sent a directory of another size");
        }
        localise(directory, stream.remote().address());
        co_return directory;
      }
      default: {
        const Refusal no = read_refusal(frame);
        if (!no.come_again) throw InvalidArgument(no.argument, no.expected, no.seen, std::nullopt);
        progress.trouble(
            fmt::format("refused: {} must be {}, not {}", no.argument, no.expected, no.seen));
        co_return std::nullopt;
      }
    }
  }
}

}  // namespace

net::Listener listen(const asio::any_io_executor& executor, const std::string& host,
                     uint16_t port) {
  const asio::ip::address address =
      host == "localhost" ? asio::ip::address_v4::loopback() : net::listening_address(host);
  return {executor, {address, port}};
}

awaitable<Directory> host_rendezvous(Attendance self, Progress& progress) {
  const auto executor = co_await asio::this_coro::executor;
  std::vector<uint32_t> others;
  for (uint32_t rank = 1; rank < self.where.size; ++rank) others.push_back(rank);
  const std::string place = fmt::format("{}:{}", self.where.host, self.where.port);
  progress.enter("rendezvous: wait for ranks at " + place, others);
  std::optional<net::Listener> listener;
  while (!listener) {
    try {
      listener.emplace(listen(executor, self.where.host, self.where.port));
    } catch (const std::system_error& error) {
      if (error.code() != asio::error::address_in_use) throw;
      // An older world of this job may not have closed its listener yet.
      progress.trouble("the port is in use by another program");
    }
    if (!listener) co_await net::pause(kPauseMax);
  }
  progress.trouble("");
  const auto rendezvous_listener =
      std::make_shared<RendezvousListener>(executor, std::move(*listener), self, progress);
  co_return co_await rendezvous_listener->wait_for_everybody();
}

awaitable<Directory> attend_rendezvous(Attendance self, Progress& progress) {
  const std::string place = fmt::format("{}:{}", self.where.host, self.where.port);
  std::chrono::milliseconds rest = kPauseMin;
  progress.enter("rendezvous: connect to rank 0 at " + place, {0});
  for (;;) {
    // Rank 0 counts as missing until it reports others. If it disappears after that, it has most
    // likely given up on them, as this rank is about to: its last report still names the ranks that
    // never came.
    try {
      std::optional<Directory> directory = co_await attend_once(self, progress);
      if (directory) co_return std::move(*directory);
    } catch (const std::system_error& error) {
      progress.trouble(error.code().message());
    } catch (const net::ProtocolError& bad) {
      progress.trouble("the program that listens there " + std::string(bad.what()));
    }
    co_await net::pause(rest);
    rest = std::min(rest * 2, kPauseMax);
  }
}

}  // namespace tokenyard::tcp
