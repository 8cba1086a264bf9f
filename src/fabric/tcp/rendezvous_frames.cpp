#include "fabric/tcp/rendezvous.hpp"

namespace tokenyard::tcp {

namespace {

FrameHeader header(const Attendance& self, FrameKind kind) {
  return {.kind = static_cast<uint16_t>(kind),
          .job = net::job_number(self.where.job),
          .rank = self.where.rank,
          .size = self.where.size};
}

net::PayloadReader reader_of(const Frame& frame, FrameKind kind) {
  if (frame.header.kind != static_cast<uint16_t>(kind)) {
    throw net::ProtocolError("sent a frame of kind " + std::to_string(frame.header.kind) +
                             " out of turn");
  }
  return net::PayloadReader(frame.payload);
}

void check(const net::PayloadReader& reader) {
  if (!reader.ok() || !reader.at_end()) throw net::ProtocolError("sent a malformed frame");
}

}  // namespace

Frame hello(const Attendance& self) {
  net::PayloadWriter payload;
  payload.text(self.where.job);
  payload.number(self.listener_port);
  return {header(self, FrameKind::hello), "", payload.take()};
}

Hello read_hello(const Frame& frame) {
  net::PayloadReader payload = reader_of(frame, FrameKind::hello);
  Hello hello{payload.text(), static_cast<uint16_t>(payload.number())};
  check(payload);
  return hello;
}

Frame progress_report(const Attendance& self, const std::vector<uint32_t>& missing) {
  net::PayloadWriter payload;
  payload.number(missing.size());
  for (const uint32_t rank : missing) payload.number(rank);
  return {header(self, FrameKind::progress), "", payload.take()};
}

std::vector<uint32_t> read_progress(const Frame& frame) {
  net::PayloadReader payload = reader_of(frame, FrameKind::progress);
  std::vector<uint32_t> missing;
  const uint64_t count = payload.number();
  while (payload.ok() && missing.size() < count) {
    missing.push_back(static_cast<uint32_t>(payload.number()));
  }
  check(payload);
  return missing;
}

Frame connect_reply(const Attendance& self, const Directory& directory) {
  net::PayloadWriter payload;
  payload.number(directory.session);
  payload.number(directory.listeners.size());
  for (const Endpoint& listener : directory.listeners) {
    payload.text(listener.address().to_string());
    payload.number(listener.port());
  }
  return {header(self, FrameKind::connect_reply), "", payload.take()};
}

Directory read_connect_reply(const Frame& frame) {
  net::PayloadReader payload = reader_of(frame, FrameKind::connect_reply);
  Directory directory{.session = payload.number(), .listeners = {}};
  const uint64_t count = payload.number();
  while (payload.ok() && directory.listeners.size() < count) {
    asio::error_code error;
    const auto address = asio::ip::make_address(payload.text(), error);
    directory.listeners.emplace_back(address, static_cast<uint16_t>(payload.number()));
    if (error) throw net::ProtocolError("sent a directory with a malformed address");
  }
  check(payload);
  return directory;
}

Frame refusal(const Attendance& self, const Refusal& reason) {
  net::PayloadWriter payload;
  payload.text(reason.argument);
  payload.text(reason.expected);
  payload.text(reason.seen);
  payload.number(reason.come_again ? 1 : 0);
  return {header(self, FrameKind::refusal), "", payload.take()};
}

Refusal read_refusal(const Frame& frame) {
  net::PayloadReader payload = reader_of(frame, FrameKind::refusal);
  Refusal reason;
  reason.argument = payload.text();
  reason.expected = payload.text();
  reason.seen = payload.text();
  reason.come_again = payload.number() != 0;
  check(payload);
  return reason;
}

}  // namespace tokenyard::tcp
