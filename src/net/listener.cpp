#include "net/listener.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "net/fork_guard.hpp"

namespace tokenyard::net {

namespace {

using TcpAcceptor = asio::ip::tcp::acceptor;

/// Opens the socket itself: forked children would inherit one of Asio's.
TcpAcceptor listening(const asio::any_io_executor& executor, const TcpEndpoint& where) {
  FileDescriptor made = open_socket(where.protocol().family(), SOCK_STREAM);
  if (!made) throw std::system_error(errno, std::generic_category(), "socket");
  TcpAcceptor acceptor(executor, where.protocol(), made.native());
  made.release();
  acceptor.set_option(TcpAcceptor::reuse_address(true));
  acceptor.bind(where);
  acceptor.listen();
  return acceptor;
}

}  // namespace

Listener::Listener(const asio::any_io_executor& executor, const TcpEndpoint& where)
    : acceptor_(listening(executor, where)), port_(acceptor_.local_endpoint().port()) {}

awaitable<void> Listener::serve(ListenerOptions options, Greet greet, std::function<void()> full) {
  while (acceptor_.is_open()) {
    TcpSocket socket = co_await accept();
    if (!acceptor_.is_open()) co_return;
    if (!socket.is_open()) {
      co_await pause(options.rest);
    } else if (*pending_ >= options.pending_max) {
      full();
      asio::error_code ignored;
      socket.close(ignored);
      if (options.rest_when_full.count() > 0) co_await pause(options.rest_when_full);
    } else {
      asio::co_spawn(acceptor_.get_executor(), greet(std::move(socket), Pending(pending_)),
                     asio::detached);
    }
  }
}

void Listener::close() {
  asio::error_code ignored;
  acceptor_.close(ignored);
}

awaitable<TcpSocket> Listener::accept() {
  asio::error_code error;
  co_await acceptor_.async_wait(TcpAcceptor::wait_read, asio::redirect_error(use_awaitable, error));
  TcpSocket socket(acceptor_.get_executor());
  FileDescriptor accepted;
  if (!error) accepted = accept_socket(acceptor_.native_handle());
  if (accepted) socket.assign(acceptor_.local_endpoint().protocol(), accepted.native(), error);
  if (accepted && !error) accepted.release();
  co_return socket;
}

asio::ip::address listening_address(const std::string& host) {
  asio::error_code not_numeric;
  const auto number = asio::ip::make_address(host, not_numeric);
  if (not_numeric) return asio::ip::address_v4::any();
  if (number.is_loopback()) return number;
  if (number.is_v6()) return asio::ip::address_v6::any();
  return asio::ip::address_v4::any();
}

}  // namespace tokenyard::net
