#include "net/stream.hpp"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <iterator>
#include <system_error>
#include <utility>

#include "net/fork_guard.hpp"

namespace tokenyard::net {

namespace {

void set(TcpSocket& socket, int level, int option, int value) {
  // A system without one of these options detects dead hosts later, nothing worse.
  (void)setsockopt(socket.native_handle(), level, option, &value, sizeof value);
}

}  // namespace

Stream::Stream(TcpSocket socket, std::chrono::nanoseconds silence) : socket_(std::move(socket)) {
  asio::error_code ignored;
  remote_ = socket_.remote_endpoint(ignored);
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(silence).count();
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(silence).count();
  set(socket_, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket_, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket_, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(socket_, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(socket_, IPPROTO_TCP, TCP_KEEPCNT, static_cast<int>(seconds));
  // Keepalive does not run while sent bytes are unacknowledged; this option covers that case.
  set(socket_, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(milliseconds));
}

awaitable<void> Stream::read_bytes(std::span<std::byte> into) {
  co_await asio::async_read(socket_, asio::buffer(into.data(), into.size()), use_awaitable);
}

awaitable<void> Stream::write_bytes(std::span<const std::byte> bytes) {
  co_await asio::async_write(socket_, asio::buffer(bytes.data(), bytes.size()), use_awaitable);
}

void Stream::try_to_write(std::span<const std::byte> bytes) {
  asio::error_code ignored;
  socket_.non_blocking(true, ignored);
  if (!bytes.empty()) socket_.write_some(asio::buffer(bytes.data(), bytes.size()), ignored);
}

void Stream::finish_writing() {
  asio::error_code ignored;
  socket_.shutdown(TcpSocket::shutdown_send, ignored);
}

void Stream::finish_reading() {
  asio::error_code ignored;
  socket_.shutdown(TcpSocket::shutdown_receive, ignored);
}

void Stream::close() {
  asio::error_code ignored;
  socket_.close(ignored);
}

std::string Stream::remote_text() const {
  return fmt::format("{}:{}", remote_.address().to_string(), remote_.port());
}

StreamTimeout::StreamTimeout(std::shared_ptr<Stream> stream, std::chrono::nanoseconds time)
    : timer_(stream->executor(), time) {
  timer_.async_wait([stream = std::move(stream)](const asio::error_code& error) {
    if (!error) stream->close();
  });
}

StreamTimeout::~StreamTimeout() {
  timer_.cancel();
}

awaitable<void> pause(std::chrono::nanoseconds time) {
  asio::steady_timer timer(co_await asio::this_coro::executor, time);
  co_await timer.async_wait(use_awaitable);
}

awaitable<TcpSocket> dial(TcpEndpoint where, std::optional<std::chrono::nanoseconds> time) {
  // Opens the socket itself: forked children would inherit one of Asio's.
  FileDescriptor made = open_socket(where.protocol().family(), SOCK_STREAM);
  if (!made) throw std::system_error(errno, std::generic_category(), "socket");
  const auto socket = std::make_shared<TcpSocket>(co_await asio::this_coro::executor,
                                                  where.protocol(), made.native());
  made.release();
  asio::steady_timer timer(socket->get_executor());
  if (time) {
    timer.expires_after(*time);
    timer.async_wait([socket](const asio::error_code& error) {
      asio::error_code ignored;
      if (!error) socket->close(ignored);
    });
  }
  co_await socket->async_connect(where, use_awaitable);
  timer.cancel();
  co_return std::move(*socket);
}

awaitable<TcpSocket> dial(std::string host, uint16_t port,
                          std::optional<std::chrono::nanoseconds> time_each) {
  asio::error_code is_name;  // Only names start the resolver's thread.
  const auto address = asio::ip::make_address(host, is_name);
  if (!is_name) co_return co_await dial(TcpEndpoint(address, port), time_each);
  asio::ip::tcp::resolver resolver(co_await asio::this_coro::executor);
  const auto places = co_await resolver.async_resolve(host, std::to_string(port), use_awaitable);
  std::optional<TcpSocket> socket;
  for (auto place = places.begin(); !socket; ++place) {
    const bool last = std::next(place) == places.end();
    try {
      socket = co_await dial(place->endpoint(), time_each);
    } catch (const std::system_error&) {
      if (last) throw;
    }
  }
  co_return std::move(*socket);
}

}  // namespace tokenyard::net
