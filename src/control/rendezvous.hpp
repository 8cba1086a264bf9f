/// How the ranks of a job find one another: in the store, where no rank is special.
///
///     generation        counts the times that the job was founded under its name
///     G/slot/S          the card of who holds slot S in generation G, or held it last
///     G/roster          the members of epoch 1: written once, by the first rank that is linked
///     with
///                       one of every slot
///     G/witness         the memory of the witness
///
/// A generation with a roster has been founded, so a founder that is not in its roster begins the
/// next one: that is how a job that was started again finds its new self. A founder that died
/// before there was a roster has its card replaced by whoever is started in its place; the roster
/// names only processes that were seen alive by the one who wrote it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "control/control_endpoint.hpp"
#include "control/store.hpp"

namespace tokenyard::control {

/// All of it throws OsError where the store does.
class Rendezvous {
 public:
  explicit Rendezvous(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  /// As a founder: puts the card into a generation that has no roster yet.
  void come(const ControlEndpoint& own);
  /// As a newcomer: finds the last generation that was founded. False if there is none.
  bool find_founded();
  /// The card of who holds the slot at present, or held it last.
  std::optional<ControlEndpoint> look(Slot slot) const;
  /// The members of epoch 1, once they are known.
  std::optional<View> roster() const;
  /// Proposes a roster; `roster` tells whose was first.
  void propose(const View& view);
  /// Puts the card of one who has been admitted where newcomers look.
  void announce(const ControlEndpoint& own);

  uint64_t generation() const { return generation_; }
  std::string witness_key() const { return key("witness"); }

 private:
  /// How many generations back a newcomer looks for one that was founded.
  static constexpr uint64_t kGenerationsBack = 64;

  std::string key(const std::string& name) const;
  std::string slot_key(Slot slot) const;
  uint64_t newest_generation() const;

  std::shared_ptr<Store> store_;
  uint64_t generation_ = 0;
};

}  // namespace tokenyard::control
