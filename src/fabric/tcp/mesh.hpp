/// A mesh of processes: one TCP connection per pair of ranks, so that each rank detects the death
/// of every other by itself. One I/O thread per mesh reads, writes and watches.
///
/// Every rank connects to all lower ranks and accepts all higher ones. A connection from outside
/// this session of this job is rejected when it introduces itself, so nothing that a process of an
/// older session sends can reach a mailbox.
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
  /// Connects to the other ranks. Throws PeerTimeout naming a rank that did not come,
  /// InvalidArgument if `where` is invalid or rank 0 refuses it, or OsError.
  static std::shared_ptr<TcpMesh> connect(const Rendezvous& where, Accelerator& accelerator,
                                          TimePoint until);
  ~TcpMesh() override;
  /// Throws Unsupported: a process says goodbye only when its mesh is destroyed.
  void leave() override;

  uint32_t slot() const override { return where_.rank; }
  uint32_t slots() const override { return where_.size; }
  void send(uint32_t to, const Message& message) override;
  Mailbox& mailbox() override { return mailbox_; }
  void expel(uint32_t slot) override;
  bool one_process() const override { return false; }
  std::string name() const override { return "TCP"; }

  /// Returns the connections that this rank has refused, each with the reason.
  std::vector<std::string> refusals() const;

 private:
  explicit TcpMesh(const Rendezvous& where);

  const Rendezvous where_;
  Mailbox mailbox_;
  std::unique_ptr<Links> links_;
};

}  // namespace tokenyard::tcp
