#include "fabric/tcp/links.hpp"

#include <fmt/format.h>

#include <future>
#include <utility>

namespace tokenyard::tcp {

namespace {

std::shared_ptr<const std::vector<std::byte>> wire(const Frame& frame) {
  return std::make_shared<const std::vector<std::byte>>(encode(frame));
}

}  // namespace

Links::Links(const Rendezvous& where, Mailbox& mailbox)
    : where_(where),
      mailbox_(mailbox),
      progress_(where.rank),
      io_(1),
      work_(asio::make_work_guard(io_)),
      listener_(listen(io_.get_executor(), where.host, 0)),
      all_here_(io_, asio::steady_timer::time_point::max()) {
  asio::co_spawn(io_, assemble(), [this](std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    assembled_ = !failure;
  });
  thread_ = std::thread([this] { io_.run(); });
}

Links::~Links() {
  say_goodbye();
  io_.stop();
  thread_.join();
}

bool Links::assembled() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  return assembled_;
}

void Links::send(uint32_t to, Frame frame) {
  frame.header.job = session_;
  frame.header.rank = where_.rank;
  frame.header.size = where_.size;
  asio::post(io_, [this, to, bytes = wire(frame)] {
    const auto link = links_.find(to);
    if (link != links_.end()) link->second->send(bytes);
  });
}

void Links::expel(uint32_t peer) {
  asio::post(io_, [this, peer] {
    const auto link = links_.find(peer);
    if (link != links_.end()) link->second->expel();
  });
}

awaitable<void> Links::assemble() {
  const Attendance self{where_, listener_.port()};
  // Not one `?:` expression: g++ 12 destroys its temporary twice.
  Directory directory;
  if (where_.rank == 0) {
    directory = co_await host_rendezvous(self, progress_);
  } else {
    directory = co_await attend_rendezvous(self, progress_);
  }
  session_ = directory.session;
  std::vector<uint32_t> others;
  for (uint32_t rank = 0; rank < where_.size; ++rank) {
    if (rank != where_.rank) others.push_back(rank);
  }
  progress_.enter("rendezvous: connect to every rank", others);
  asio::co_spawn(io_, accept_higher_ranks(), asio::detached);
  for (uint32_t rank = 0; rank < where_.rank; ++rank) {
    asio::co_spawn(io_, connect_to(rank, directory.listeners[rank]), asio::detached);
  }
  while (links_.size() < others.size()) {
    asio::error_code woken;
    co_await all_here_.async_wait(asio::redirect_error(use_awaitable, woken));
  }
  listener_.close();
}

awaitable<void> Links::connect_to(uint32_t rank, Endpoint listener) {
  for (;;) {
    try {
      Socket socket = co_await net::dial(listener, std::nullopt);
      auto stream = std::make_shared<FrameStream>(std::move(socket));
      const Frame hello = introduction();
      co_await stream->write(hello);
      const Frame answer = co_await stream->read(FrameRules{.job = session_});
      if (answer.header.rank == rank) {
        adopt(rank, stream);
        co_return;
      }
    } catch (const std::exception& error) {
      progress_.trouble(fmt::format("rank {}: {}", rank, error.what()));
    }
    co_await net::pause(std::chrono::milliseconds(50));
  }
}

awaitable<void> Links::accept_higher_ranks() {
  return listener_.serve({}, [this](Socket socket, net::Pending pending) {
    return greet(std::make_shared<FrameStream>(std::move(socket)), std::move(pending));
  });
}

awaitable<void> Links::greet(std::shared_ptr<FrameStream> stream, net::Pending) {
  std::string trouble = "connected but did not identify itself";
  try {
    const net::StreamTimeout timeout(stream, std::chrono::seconds(5));
    const Frame frame = co_await stream->read(FrameRules{.job = session_});
    const uint32_t rank = frame.header.rank;
    if (rank > where_.rank && rank < where_.size && !links_.contains(rank)) {
      const Frame hello = introduction();
      co_await stream->write(hello);
      adopt(rank, stream);
      co_return;
    }
    trouble = fmt::format("claimed to be rank {}, which is not awaited here", rank);
  } catch (const net::ProtocolError& bad) {
    trouble = bad.what();
  } catch (const std::system_error&) {
    // It stayed silent or disconnected.
  }
  progress_.refused(stream->remote_text(), trouble);
  stream->close();
}

void Links::adopt(uint32_t rank, std::shared_ptr<FrameStream> stream) {
  const auto link = std::make_shared<Link>(std::move(stream), rank, session_, mailbox_);
  links_[rank] = link;
  link->start();
  progress_.arrived(rank);
  if (links_.size() + 1 == where_.size) all_here_.cancel();
}

Frame Links::introduction() const {
  return {FrameHeader{.kind = static_cast<uint16_t>(FrameKind::hello),
                      .job = session_,
                      .rank = where_.rank,
                      .size = where_.size},
          "",
          {}};
}

void Links::say_goodbye() {
  // Fulfils its promise when the last link releases it, which may be after this call.
  struct Farewell {
    std::promise<void> heard;
    ~Farewell() { heard.set_value(); }
  };
  auto farewell = std::make_shared<Farewell>();
  auto heard = farewell->heard.get_future();
  asio::post(io_, [this, farewell = std::move(farewell)] {
    Frame goodbye = introduction();
    goodbye.header.kind = static_cast<uint16_t>(FrameKind::goodbye);
    const auto bytes = wire(goodbye);
    for (auto& [rank, link] : links_) link->leave(bytes, [farewell] {});
  });
  heard.wait_for(kGoodbyeMax);
}

}  // namespace tokenyard::tcp
