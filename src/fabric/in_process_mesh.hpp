/// A mesh of threads of one process: a message goes straight into its receiver's mailbox.
#pragma once

#include <memory>
#include <vector>

#include "fabric/mesh.hpp"

namespace tokenyard {

class InProcessMesh final : public Mesh {
 public:
  /// Returns one end per slot.
  static std::vector<std::shared_ptr<InProcessMesh>> make(uint32_t slots);
  ~InProcessMesh() override;
  void leave() override;

  uint32_t slot() const override { return slot_; }
  uint32_t slots() const override { return static_cast<uint32_t>(mailboxes_.size()); }
  void send(uint32_t to, const Message& message) override;
  Mailbox& mailbox() override { return *mailboxes_[slot_]; }
  bool one_process() const override { return true; }
  /// Ends without a goodbye, as a killed process would. For tests.
  void vanish();

 private:
  InProcessMesh(uint32_t slot, std::vector<std::shared_ptr<Mailbox>> mailboxes);
  void publish_peers(PeerState state);

  uint32_t slot_;
  std::vector<std::shared_ptr<Mailbox>> mailboxes_;  ///< [slots]
};

}  // namespace tokenyard
