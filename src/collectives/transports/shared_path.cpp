#include "collectives/transports/shared_path.hpp"

#include <algorithm>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

/// Per look, so that a process that floods the mailbox cannot keep this one from its work.
constexpr size_t kDatagramsMax = 64;
/// Only members can send early messages; more than this many are invalid.
constexpr size_t kEarlyConnectRequestsMax = 4096;

}  // namespace

Segment SharedPath::invite(const ChannelName& channel, const std::string& mailbox,
                           size_t ring_bytes) {
  Segment segment = Segment::make(ring_bytes);
  const ConnectRequest connect_request{.kind = ConnectRequestKind::shared_memory,
                                       .channel = channel,
                                       .bytes = segment.ring_bytes(),
                                       .file = segment.file(),
                                       .words = {}};
  outbox_.push_back({net::AbstractAddress(mailbox), encode(connect_request, key_),
                     segment.take_descriptor(), channel});
  return segment;
}

void SharedPath::refuse(const ChannelName& channel, const std::string& mailbox,
                        const std::string& words) {
  const ConnectRequest refusal{
      .kind = ConnectRequestKind::refusal, .channel = channel, .words = words};
  outbox_.push_back({net::AbstractAddress(mailbox), encode(refusal, key_), {}, channel});
}

std::vector<SharedNews> SharedPath::poll() {
  std::vector<SharedNews> news;
  if (!early_.empty()) {
    const auto later = std::partition(early_.begin(), early_.end(), [&](const Early& datagram) {
      return datagram.connect_request.channel.epoch > gate_.epoch();
    });
    std::vector<Early> due(std::make_move_iterator(later), std::make_move_iterator(early_.end()));
    early_.erase(later, early_.end());
    for (Early& datagram : due) open(std::move(datagram), news);
  }
  for (size_t count = 0; count < kDatagramsMax; ++count) {
    auto datagram = mailbox_.take();
    if (!datagram) break;
    if (!datagram->bytes.empty()) read(std::move(*datagram), news);
  }
  post_outgoing(news);
  return news;
}

void SharedPath::post_outgoing(std::vector<SharedNews>& news) {
  for (size_t count = outbox_.size(); count > 0; --count) {
    Outgoing datagram = std::move(outbox_.front());
    outbox_.pop_front();
    switch (mailbox_.post(datagram.to, datagram.bytes, datagram.enclosed)) {
      case Posted::yes:
        break;
      case Posted::not_now:  // other mailboxes may have room
        outbox_.push_back(std::move(datagram));
        break;
      case Posted::never:
        if (datagram.enclosed) {
          news.push_back(
              {datagram.channel, std::nullopt, "no process is at the peer's Unix socket"});
        }
        break;
    }
  }
}

void SharedPath::read(MailboxMessage datagram, std::vector<SharedNews>& news) {
  auto connect_request = decode_connect_request(datagram.bytes, key_);
  if (!connect_request || !datagram.own_user) {
    ++refused_;
    return;
  }
  Early opened{std::move(*connect_request), std::move(datagram.enclosed), datagram.enclosure_lost};
  if (gate_.judge(opened.connect_request) == Timing::early &&
      early_.size() < kEarlyConnectRequestsMax) {
    early_.push_back(std::move(opened));
  } else {
    open(std::move(opened), news);
  }
}

void SharedPath::open(Early datagram, std::vector<SharedNews>& news) {
  ConnectRequest& connect_request = datagram.connect_request;
  if (gate_.judge(connect_request) != Timing::now ||
      connect_request.kind == ConnectRequestKind::tcp) {
    ++refused_;
    return;
  }
  SharedNews item{connect_request.channel, std::nullopt, std::move(connect_request.words)};
  if (connect_request.kind == ConnectRequestKind::shared_memory) {
    try {
      if (datagram.enclosure_lost)
        throw OsError("recvmsg with SCM_RIGHTS", EMFILE, "no descriptor");
      item.segment.emplace(Segment::adopt(std::move(datagram.enclosed), connect_request.bytes,
                                          connect_request.file));
    } catch (const Error& error) {
      item.refusal = error.what();
    }
  }
  news.push_back(std::move(item));
}

void SharedPath::begin_epoch() {
  outbox_.clear();
}

}  // namespace tokenyard::collectives
