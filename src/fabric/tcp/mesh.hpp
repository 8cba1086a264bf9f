/// A mesh among processes: one TCP connection for every pair of ranks, so that each rank sees the
/// death of every other by itself. One I/O thread a mesh reads, writes and watches.
///
/// Every rank connects to those of lower rank and accepts those of higher rank. What is not from
/// this session of this job is turned away at the door, and nothing that a process of an older
/// session sends can reach a mailbox.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/accelerator.hpp"
#include "fabric/mesh.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::tcp {

class Links;

class TcpMesh final : public Mesh {
 public:
  /// Meets the other ranks. Throws PeerTimeout naming one that did not come, InvalidArgument for
  /// what rank 0 refuses, OsError.
  static std::shared_ptr<TcpMesh> connect(const Rendezvous& where, Accelerator& accelerator,
                                          TimePoint until);
  ~TcpMesh() override;
  /// Throws Unsupported: its end is the end of a process.
  void leave() override;

  uint32_t slot() const override { return where_.rank; }
  uint32_t slots() const override { return where_.size; }
  void send(uint32_t to, const Message& message) override;
  Mailbox& mailbox() override { return mailbox_; }
  bool one_process() const override { return false; }
  std::string name() const override { return "TCP"; }

  /// Whom this rank has turned away, and why.
  std::vector<std::string> refusals() const;

 private:
  explicit TcpMesh(const Rendezvous& where);

  const Rendezvous where_;
  Mailbox mailbox_;
  std::unique_ptr<Links> links_;
};

}  // namespace tokenyard::tcp
