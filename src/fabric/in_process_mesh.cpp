#include "fabric/in_process_mesh.hpp"

#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard {

std::vector<std::shared_ptr<InProcessMesh>> InProcessMesh::make(uint32_t slots) {
  std::vector<std::shared_ptr<Mailbox>> mailboxes;
  for (uint32_t slot = 0; slot < slots; ++slot) {
    mailboxes.push_back(std::make_shared<Mailbox>(slots));
  }
  std::vector<std::shared_ptr<InProcessMesh>> ends;
  for (uint32_t slot = 0; slot < slots; ++slot) {
    ends.push_back(std::shared_ptr<InProcessMesh>(new InProcessMesh(slot, mailboxes)));
  }
  return ends;
}

InProcessMesh::InProcessMesh(uint32_t slot, std::vector<std::shared_ptr<Mailbox>> mailboxes)
    : slot_(slot), mailboxes_(std::move(mailboxes)) {}

InProcessMesh::~InProcessMesh() {
  leave();
}

void InProcessMesh::leave() {
  publish_peers(PeerState::left);
}

void InProcessMesh::vanish() {
  publish_peers(PeerState::lost);
}

void InProcessMesh::send(uint32_t to, const Message& message) {
  if (mailboxes_[slot_]->state(to) != PeerState::present) return;
  if (!mailboxes_.at(to)->put(slot_, message)) {
    throw InternalError(
        "a rank's mailbox is full: a peer sent more messages than any protocol allows");
  }
}

void InProcessMesh::publish_peers(PeerState state) {
  for (uint32_t peer = 0; peer < slots(); ++peer) {
    if (peer != slot_) mailboxes_[peer]->mark(slot_, state);
  }
}

}  // namespace tokenyard
