/// How the ranks of a job find one another through the store. No rank is special.
///
///     generation        how many times the job has been founded under its name
///     G/slot/S          endpoint of the process that holds slot S in generation G, or held it last
///     G/roster          members of epoch 1, written once, by the first rank linked to all slots
///     G/witness         the witness's register
///     G/witness_at      written before the roster if something else keeps the register
///
/// Invariant: a generation with a roster has been founded. A founder that is not in the roster
/// begins the next generation; so a job that is started again finds its new self. A founder that
/// dies before there is a roster has its endpoint replaced by the process started in its place. The
/// roster names only processes that its writer was linked with, so they were alive then.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "control/control_endpoint.hpp"
#include "control/store.hpp"

namespace tokenyard::control {

/// All calls throw OsError if the store does.
class Rendezvous {
 public:
  explicit Rendezvous(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  /// As a founder: writes the endpoint into a generation without a roster.
  void come(const ControlEndpoint& own);
  /// As a newcomer: finds the last generation that was founded. Returns false if there is none.
  bool find_founded();
  /// Returns the endpoint of the process that holds the slot, or held it last.
  std::optional<ControlEndpoint> look(Slot slot) const;
  /// Returns the members of epoch 1 once they are known.
  std::optional<View> roster() const;
  /// Proposes a roster; `roster` returns the one that was first.
  void propose(const View& view);
  /// Says, before the roster is proposed, that the store does not keep the witness's register.
  void keep_witness_elsewhere();
  bool is_witness_elsewhere() const;
  /// Writes an admitted process's endpoint where newcomers look.
  void announce(const ControlEndpoint& own);

  uint64_t generation() const { return generation_; }
  std::string witness_key() const { return key("witness"); }

 private:
  /// How many generations back a newcomer looks for a founded one.
  static constexpr uint64_t kGenerationsBack = 64;

  std::string key(const std::string& name) const;
  std::string slot_key(Slot slot) const;
  uint64_t newest_generation() const;

  std::shared_ptr<Store> store_;
  uint64_t generation_ = 0;
};

}  // namespace tokenyard::control
