#include "collectives/transports/shared_path.hpp"

#include <algorithm>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

/// Of one look, so that who fills the box cannot keep this process from its work.
constexpr size_t kLettersMax = 64;
/// Only members can send such letters; more than this many of a time to come is nonsense.
constexpr size_t kEarlyInvitationsMax = 4096;

}  // namespace

Segment SharedPath::invite(const ChannelName& channel, const std::string& letterbox,
                           size_t ring_bytes) {
  Segment segment = Segment::make(ring_bytes);
  const Invitation invitation{.kind = InvitationKind::shared_memory,
                              .channel = channel,
                              .bytes = segment.ring_bytes(),
                              .file = segment.file(),
                              .words = {}};
  outbox_.push_back({net::AbstractAddress(letterbox), encode(invitation, key_),
                     segment.take_descriptor(), channel});
  return segment;
}

void SharedPath::refuse(const ChannelName& channel, const std::string& letterbox,
                        const std::string& words) {
  const Invitation refusal{.kind = InvitationKind::refusal, .channel = channel, .words = words};
  outbox_.push_back({net::AbstractAddress(letterbox), encode(refusal, key_), {}, channel});
}

std::vector<SharedNews> SharedPath::poll() {
  std::vector<SharedNews> news;
  if (!early_.empty()) {
    const auto later = std::partition(early_.begin(), early_.end(), [&](const Early& letter) {
      return letter.invitation.channel.epoch > gate_.epoch();
    });
    std::vector<Early> due(std::make_move_iterator(later), std::make_move_iterator(early_.end()));
    early_.erase(later, early_.end());
    for (Early& letter : due) open(std::move(letter), news);
  }
  for (size_t count = 0; count < kLettersMax; ++count) {
    auto letter = letterbox_.take();
    if (!letter) break;
    if (!letter->bytes.empty()) read(std::move(*letter), news);
  }
  post_outgoing(news);
  return news;
}

void SharedPath::post_outgoing(std::vector<SharedNews>& news) {
  for (size_t count = outbox_.size(); count > 0; --count) {
    Outgoing letter = std::move(outbox_.front());
    outbox_.pop_front();
    switch (letterbox_.post(letter.to, letter.bytes, letter.enclosed)) {
      case Posted::yes:
        break;
      case Posted::not_now:  // Others may have room.
        outbox_.push_back(std::move(letter));
        break;
      case Posted::never:
        if (letter.enclosed) {
          news.push_back({letter.channel, std::nullopt, "nobody is at the peer's Unix socket"});
        }
        break;
    }
  }
}

void SharedPath::read(ArrivedLetter letter, std::vector<SharedNews>& news) {
  auto invitation = decode_invitation(letter.bytes, key_);
  if (!invitation || !letter.own_user) {
    ++refused_;
    return;
  }
  Early opened{std::move(*invitation), std::move(letter.enclosed), letter.enclosure_lost};
  if (gate_.judge(opened.invitation) == Timing::early && early_.size() < kEarlyInvitationsMax) {
    early_.push_back(std::move(opened));
  } else {
    open(std::move(opened), news);
  }
}

void SharedPath::open(Early letter, std::vector<SharedNews>& news) {
  Invitation& invitation = letter.invitation;
  if (gate_.judge(invitation) != Timing::now || invitation.kind == InvitationKind::tcp) {
    ++refused_;
    return;
  }
  SharedNews item{invitation.channel, std::nullopt, std::move(invitation.words)};
  if (invitation.kind == InvitationKind::shared_memory) {
    try {
      if (letter.enclosure_lost) throw OsError("recvmsg with SCM_RIGHTS", EMFILE, "no descriptor");
      item.segment.emplace(
          Segment::adopt(std::move(letter.enclosed), invitation.bytes, invitation.file));
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
