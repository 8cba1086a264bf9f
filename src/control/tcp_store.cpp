#include "control/tcp_store.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <exception>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard::control {

using store_protocol::Reply;
using store_protocol::Request;
using store_protocol::Verb;

TcpStore::TcpStore(std::string host, uint16_t port, std::string job, const std::string& secret)
    : host_(std::move(host)),
      port_(port),
      job_(std::move(job)),
      key_(store_protocol::key_of(secret)) {}

std::optional<Store::Value> TcpStore::get(const std::string& key) {
  return call({.verb = Verb::get, .key = key, .expected = {}, .value = {}}).value;
}

void TcpStore::set(const std::string& key, const Value& value) {
  call({.verb = Verb::set, .key = key, .expected = {}, .value = value});
}

Store::Value TcpStore::compare_and_set(const std::string& key, const std::optional<Value>& expected,
                                       const Value& desired) {
  // Trying again is harmless: if the first attempt succeeded and its reply was lost, the second
  // finds `desired` and returns it.
  const Reply reply =
      call({.verb = Verb::compare_and_set, .key = key, .expected = expected, .value = desired});
  return reply.value.value_or(Value{});
}

Reply TcpStore::call(Request request) {
  request.key = fmt::format("{}/{}", job_, request.key);
  if (request.key.size() > store_protocol::kKeyMax ||
      request.value.size() > store_protocol::kValueMax) {
    throw InternalError(fmt::format("{}: a key or value is too long", place()));
  }
  const std::lock_guard lock(mutex_);
  const auto until = Clock::now() + kCallMax;
  // An old connection may have broken unnoticed, so it gets a second attempt; a new one does not.
  const bool old = connection_ != nullptr;
  std::optional<Reply> reply = attempt(request, until);
  if (!reply && old) reply = attempt(request, until);
  if (!reply) throw OsError(place(), ECONNREFUSED, trouble_);
  if (reply->full) throw OsError(place(), ENOSPC, "it is full");
  return *reply;
}

std::optional<Reply> TcpStore::attempt(const Request& request, Clock::time_point until) {
  std::optional<Reply> reply;
  std::exception_ptr failure;
  if (!io_) io_ = std::make_unique<asio::io_context>(1);
  asio::co_spawn(*io_, exchange(request), [&](std::exception_ptr thrown, Reply answer) {
    failure = thrown;
    if (!thrown) reply = std::move(answer);
  });
  io_->restart();
  io_->run_until(until);
  if (reply) return reply;
  forget_connection();
  if (!failure) throw OsError(place(), ETIMEDOUT, "no answer in time");
  try {
    std::rethrow_exception(failure);
  } catch (const net::ProtocolError& stranger) {
    throw OsError(place(), EPROTO, fmt::format("the process there {}", stranger.what()));
  } catch (const std::system_error& error) {
    trouble_ = error.code().message();
  }
  return std::nullopt;
}

net::awaitable<Reply> TcpStore::exchange(const Request& request) {
  if (!connection_) co_await connect();
  const auto bytes = encode(request);
  co_await connection_->write(static_cast<uint16_t>(request.verb), bytes);
  const net::SealedFrame frame = co_await connection_->read();
  co_return decode_reply(frame, Verb::reply);
}

net::awaitable<void> TcpStore::connect() {
  net::TcpSocket socket = co_await net::dial(host_, port_, kCallMax);
  const auto connection = std::make_shared<net::Connection>(std::move(socket), kCallMax);
  const net::Introduction self = store_protocol::introduction();
  co_await connection->shake_hands(net::Handshake::Side::dialler, key_, self);
  const net::SealedFrame frame = co_await connection->read();
  const Reply greeting = decode_reply(frame, Verb::greeting);
  if (instance_ && instance_ != greeting.value) {
    throw net::ProtocolError("does not have the memory of the store that was there before");
  }
  instance_ = greeting.value;
  connection_ = connection;
}

void TcpStore::forget_connection() {
  // Destroying the context destroys the handlers left in it, which refer to the call.
  connection_ = nullptr;
  io_ = nullptr;
}

std::string TcpStore::place() const {
  return fmt::format("the store at {}:{}", host_, port_);
}

}  // namespace tokenyard::control
