#include "fabric/in_process_mesh.hpp"

#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard {

std::vector<std::shared_ptr<InProcessMesh>> InProcessMesh::make(uint32_t seats) {
  std::vector<std::shared_ptr<Mailbox>> mailboxes;
  for (uint32_t seat = 0; seat < seats; ++seat) {
    mailboxes.push_back(std::make_shared<Mailbox>(seats));
  }
  std::vector<std::shared_ptr<InProcessMesh>> ends;
  for (uint32_t seat = 0; seat < seats; ++seat) {
    ends.push_back(std::shared_ptr<InProcessMesh>(new InProcessMesh(seat, mailboxes)));
  }
  return ends;
}

InProcessMesh::InProcessMesh(uint32_t seat, std::vector<std::shared_ptr<Mailbox>> mailboxes)
    : seat_(seat), mailboxes_(std::move(mailboxes)) {}

InProcessMesh::~InProcessMesh() {
  leave();
}

void InProcessMesh::leave() {
  tell_peers(PeerState::left);
}

void InProcessMesh::vanish() {
  tell_peers(PeerState::lost);
}

void InProcessMesh::send(uint32_t to, const Message& message) {
  if (mailboxes_[seat_]->state(to) != PeerState::present) return;
  if (!mailboxes_.at(to)->put(seat_, message)) {
    throw InternalError("a rank was sent more messages than any protocol of ours sends");
  }
}

void InProcessMesh::tell_peers(PeerState state) {
  for (uint32_t peer = 0; peer < seats(); ++peer) {
    if (peer != seat_) mailboxes_[peer]->mark(seat_, state);
  }
}

}  // namespace tokenyard
