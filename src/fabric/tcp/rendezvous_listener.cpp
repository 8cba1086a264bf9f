#include "fabric/tcp/rendezvous_listener.hpp"

#include <fmt/format.h>

#include <utility>

#include "net/key.hpp"

namespace tokenyard::tcp {

namespace {

/// Waits until the timer expires or is cancelled, which is no error here.
awaitable<void> sleep_on(asio::steady_timer& timer) {
  asio::error_code woken;
  co_await timer.async_wait(asio::redirect_error(use_awaitable, woken));
}

}  // namespace

RendezvousListener::RendezvousListener(const asio::any_io_executor& executor,
                                       net::Listener listener, Attendance self, Progress& progress)
    : executor_(executor),
      listener_(std::move(listener)),
      self_(std::move(self)),
      progress_(progress),
      change_(executor_, asio::steady_timer::time_point::max()) {}

awaitable<Directory> RendezvousListener::wait_for_everybody() {
  asio::co_spawn(
      executor_, [self = shared_from_this()] { return self->serve(); }, asio::detached);
  while (!missing().empty()) co_await sleep_on(change_);

  Directory directory{.session = net::random_number(), .listeners = {}};
  directory.listeners.emplace_back(asio::ip::address_v4::any(), self_.listener_port);
  for (const auto& [rank, connection] : connections_) {
    directory.listeners.emplace_back(connection.stream->remote().address(),
                                     connection.listener_port);
  }
  directory_ = directory;
  changed();
  asio::co_spawn(
      executor_, [self = shared_from_this()] { return self->close_later(); }, asio::detached);
  co_return directory;
}

awaitable<void> RendezvousListener::serve() {
  const auto came = [self = shared_from_this()](Socket socket, net::Pending pending) {
    return self->greet(std::make_shared<FrameStream>(std::move(socket)), std::move(pending));
  };
  // Under a flood of connections, the pending ones are served before more are accepted.
  return listener_.serve({.pending_max = kUnknownMax, .rest_when_full = kRestWhenFull}, came);
}

awaitable<void> RendezvousListener::greet(std::shared_ptr<FrameStream> stream,
                                          net::Pending pending) {
  std::optional<Frame> frame;
  std::optional<Hello> hello;
  std::optional<Refusal> no;
  std::string trouble;
  {
    const net::StreamTimeout timeout(stream, kHelloMax);
    try {
      frame = co_await stream->read(FrameRules{});
      hello = read_hello(*frame);
    } catch (const net::ProtocolError& bad) {
      trouble = bad.what();
      no = Refusal{"protocol", fmt::format("version {}", kVersion), trouble};
    } catch (const std::system_error&) {
      trouble = "connected but did not identify itself";
    }
  }
  pending.release();
  if (hello) no = judge(*frame, *hello);
  if (no && trouble.empty()) {
    trouble = fmt::format("claims rank {}, but {} must be {}, not {}", frame->header.rank,
                          no->argument, no->expected, no->seen);
  }
  if (!trouble.empty()) {
    // A rank that may come again retries several times per second; its own error names the refusal.
    if (!no || !no->come_again) progress_.refused(stream->remote_text(), trouble);
    if (no) co_await turn_away(stream, *no);
    co_return;
  }

  const uint32_t rank = frame->header.rank;
  connections_[rank] = AuthenticatedConnection{stream, hello->listener_port};
  progress_.arrived(rank);
  changed();
  asio::co_spawn(
      executor_, [self = shared_from_this(), stream] { return self->keep_informed(stream); },
      asio::detached);
  try {
    co_await stream->read(FrameRules{});
  } catch (const std::exception&) {
    // It disconnected or sent an unexpected frame; either way it no longer attends.
  }
  stream->close();
  if (!directory_) {
    connections_.erase(rank);
    progress_.missing(missing());
    progress_.trouble(fmt::format("rank {} connected and disconnected again", rank));
    changed();
  }
}

awaitable<void> RendezvousListener::keep_informed(std::shared_ptr<FrameStream> stream) {
  try {
    while (!directory_) {
      const uint64_t published = changes_;
      const Frame report = progress_report(self_, missing());
      co_await stream->write(report);
      if (changes_ == published) co_await sleep_on(change_);
      if (!stream->is_open()) co_return;
    }
    const Frame come_in = connect_reply(self_, *directory_);
    co_await stream->write(come_in);
  } catch (const std::system_error&) {
    // The reader notices too, and drops the connection.
  }
}

awaitable<void> RendezvousListener::turn_away(std::shared_ptr<FrameStream> stream, Refusal reason) {
  const net::StreamTimeout timeout(stream, kHelloMax);
  try {
    const Frame no = refusal(self_, reason);
    co_await stream->write(no);
    stream->finish_writing();
    // Closing with unread data would reset the connection before the peer has read the refusal.
    for (;;) co_await stream->read(FrameRules{});
  } catch (const std::exception&) {
    // The connection has ended, whether or not the peer has read the refusal.
  }
  stream->close();
}

awaitable<void> RendezvousListener::close_later() {
  asio::steady_timer timer(executor_, kOpenAfterwards);
  co_await sleep_on(timer);
  listener_.close();
}

std::optional<Refusal> RendezvousListener::judge(const Frame& frame, const Hello& hello) const {
  const uint32_t rank = frame.header.rank;
  // Once all ranks are connected, a newcomer may belong to the next world at this port.
  const bool too_early = directory_.has_value();
  if (hello.job != self_.where.job) {
    return Refusal{"job", fmt::format("'{}'", self_.where.job), fmt::format("'{}'", hello.job),
                   too_early};
  }
  if (frame.header.size != self_.where.size) {
    return Refusal{"size", fmt::format("{} as on rank 0", self_.where.size),
                   fmt::format("{}", frame.header.size), too_early};
  }
  if (rank >= self_.where.size) {
    return Refusal{"rank", fmt::format("below {}", self_.where.size), fmt::format("{}", rank),
                   too_early};
  }
  const auto twin = connections_.find(rank);
  if (rank != self_.where.rank && twin == connections_.end()) return std::nullopt;
  const std::string first =
      rank == self_.where.rank ? "the rendezvous host" : twin->second.stream->remote_text();
  return Refusal{"rank", "one that no other process uses",
                 fmt::format("{}, which {} uses", rank, first), too_early};
}

std::vector<uint32_t> RendezvousListener::missing() const {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < self_.where.size; ++rank) {
    if (rank != self_.where.rank && !connections_.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

void RendezvousListener::changed() {
  ++changes_;
  change_.cancel();
  change_.expires_at(asio::steady_timer::time_point::max());
}

}  // namespace tokenyard::tcp
