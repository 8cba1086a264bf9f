#include "net/connection.hpp"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "net/fork_guard.hpp"

namespace tokenyard::net {

namespace {

void set(TcpSocket& socket, int level, int option, int value) {
  // A system without one of these notices dead hosts by their heartbeats alone.
  (void)setsockopt(socket.native_handle(), level, option, &value, sizeof value);
}

/// Not by Asio, whose sockets children inherit.
template <class AnySocket>
AnySocket opened(const asio::any_io_executor& executor, const TcpEndpoint& where) {
  FileDescriptor made = open_socket(where.protocol().family(), SOCK_STREAM);
  if (!made) throw std::system_error(errno, std::generic_category(), "socket");
  return {executor, where.protocol(), made.release()};
}

}  // namespace

Connection::Connection(TcpSocket socket, std::chrono::nanoseconds silence)
    : socket_(std::move(socket)) {
  asio::error_code ignored;
  remote_ = socket_.remote_endpoint(ignored);
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(silence).count();
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(silence).count();
  set(socket_, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket_, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket_, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(socket_, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(socket_, IPPROTO_TCP, TCP_KEEPCNT, static_cast<int>(seconds));
  // Keepalive says nothing while sent bytes are unacknowledged; this does.
  set(socket_, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(milliseconds));
}

awaitable<void> Connection::shake_hands(Handshake::Side side, const Key& key,
                                        const Introduction& self) {
  Handshake handshake(side, key, self);
  std::array<std::byte, Handshake::kHelloBytes> bytes;
  for (;;) {
    const std::vector<std::byte> output = handshake.take_output();
    if (!output.empty()) co_await asio::async_write(socket_, asio::buffer(output), use_awaitable);
    const size_t wanted = handshake.wanted();
    if (wanted == 0) break;
    co_await asio::async_read(socket_, asio::buffer(bytes.data(), wanted), use_awaitable);
    try {
      handshake.receive(std::span(bytes).first(wanted));
    } catch (const Stranger&) {
      // What a stranger is told is short: it goes out at once or not at all.
      const std::vector<std::byte> last = handshake.take_output();
      asio::error_code ignored;
      socket_.non_blocking(true, ignored);
      if (!last.empty()) socket_.write_some(asio::buffer(last), ignored);
      throw;
    }
  }
  peer_ = handshake.peer();
  sealer_.emplace(handshake.sending_key());
  opener_.emplace(handshake.receiving_key());
}

awaitable<SealedFrame> Connection::read() {
  std::array<std::byte, kFrameHeaderBytes> header;
  co_await asio::async_read(socket_, asio::buffer(header), use_awaitable);
  std::vector<std::byte> rest(opener_.value().judge(header));
  co_await asio::async_read(socket_, asio::buffer(rest), use_awaitable);
  co_return opener_->open(std::move(rest));
}

awaitable<void> Connection::write(uint16_t kind, std::span<const std::byte> payload) {
  const std::vector<std::byte> frame = sealer_.value().seal(kind, payload);
  co_await asio::async_write(socket_, asio::buffer(frame), use_awaitable);
}

void Connection::finish_writing() {
  asio::error_code ignored;
  socket_.shutdown(TcpSocket::shutdown_send, ignored);
}

void Connection::close() {
  asio::error_code ignored;
  socket_.close(ignored);
}

std::string Connection::remote_text() const {
  return fmt::format("{}:{}", remote_.address().to_string(), remote_.port());
}

Patience::Patience(std::shared_ptr<Connection> connection, std::chrono::nanoseconds time)
    : timer_(connection->executor(), time) {
  timer_.async_wait([connection = std::move(connection)](const asio::error_code& error) {
    if (!error) connection->close();
  });
}

Patience::~Patience() {
  timer_.cancel();
}

awaitable<void> pause(std::chrono::nanoseconds time) {
  asio::steady_timer timer(co_await asio::this_coro::executor, time);
  co_await timer.async_wait(use_awaitable);
}

TcpAcceptor listen(const asio::any_io_executor& executor, const TcpEndpoint& where) {
  auto acceptor = opened<TcpAcceptor>(executor, where);
  acceptor.set_option(TcpAcceptor::reuse_address(true));
  acceptor.bind(where);
  acceptor.listen();
  return acceptor;
}

awaitable<TcpSocket> accept(TcpAcceptor& acceptor) {
  asio::error_code error;
  co_await acceptor.async_wait(TcpAcceptor::wait_read, asio::redirect_error(use_awaitable, error));
  TcpSocket socket(acceptor.get_executor());
  FileDescriptor accepted;
  if (!error) accepted = accept_socket(acceptor.native_handle());
  if (accepted) socket.assign(acceptor.local_endpoint().protocol(), accepted.native(), error);
  if (accepted && !error) accepted.release();
  co_return socket;
}

awaitable<TcpSocket> dial_endpoint(TcpEndpoint where, std::chrono::nanoseconds time) {
  const auto socket =
      std::make_shared<TcpSocket>(opened<TcpSocket>(co_await asio::this_coro::executor, where));
  asio::steady_timer timer(socket->get_executor(), time);
  timer.async_wait([socket](const asio::error_code& error) {
    asio::error_code ignored;
    if (!error) socket->close(ignored);
  });
  co_await socket->async_connect(where, use_awaitable);
  timer.cancel();
  co_return std::move(*socket);
}

}  // namespace tokenyard::net
