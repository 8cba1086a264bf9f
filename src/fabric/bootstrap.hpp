/// How the ranks of one world talk while they set things up: all-gather of small things, barrier,
/// and agreeing on a smaller world. Every wait has a deadline and a name.
///
/// All of it is one exchange: send to every peer, take one message from every peer. A message says
/// in which generation of the world, as which collective and for which call it was sent:
///  - generation: a world made by `rebuild` ignores messages sent in the previous one;
///  - sequence: messages left from an exchange that this rank gave up never count for the next;
///  - what: ranks that make different calls get an error instead of mixing their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/accelerator.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/mesh.hpp"

namespace tokenyard {

/// The participants: one world's ranks on a mesh.
struct Membership {
  uint32_t generation = 0;
  uint32_t rank = 0;            ///< this rank's
  std::vector<uint32_t> slots;  ///< [ranks] where each sits on the mesh, ascending

  /// Everybody on the mesh.
  static Membership of(const Mesh& mesh);
};

class Bootstrap {
 public:
  /// Waits by `accelerator`, so that simulated ranks can wait for one another too. Rings
  /// `abort_flag` for ranks that go. Both must outlive this.
  Bootstrap(std::shared_ptr<Mesh> mesh, Membership membership, Accelerator& accelerator,
            AbortFlag& abort_flag);
  ~Bootstrap();
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;

  uint32_t rank() const { return membership_.rank; }
  uint32_t size() const { return static_cast<uint32_t>(membership_.slots.size()); }
  uint32_t generation() const { return membership_.generation; }
  const Membership& membership() const { return membership_; }
  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }
  Accelerator& accelerator() const { return accelerator_; }

  // Collectives. They throw PeerTimeout or PeerLost naming a rank that did not come, Cancelled, or
  // InvalidArgument where another rank made another call.

  /// Every rank's bytes, in rank order. Lengths may differ.
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine,
                                                 const std::string& what, TimePoint until);
  void barrier(const std::string& what, TimePoint until);
  /// Every rank's object, in rank order; only where mesh().one_process().
  std::vector<std::shared_ptr<void>> share(std::shared_ptr<void> mine, const std::string& what,
                                           TimePoint until);
  /// Until `arrived(rank)` has held once for every other rank: for what travels by other ways.
  void await_each(const std::string& what, TimePoint until,
                  const std::function<bool(uint32_t rank)>& arrived);
  /// Among the ranks not in `without`: who goes on. Throws InvalidArgument naming both lists if
  /// another survivor has another one. May be called again if what was to come of it has failed:
  /// every call makes a later generation than those that have returned before, on any rank.
  Membership agree_without(const std::vector<uint32_t>& without, TimePoint until);

 private:
  std::vector<Message> exchange(Message mine, TimePoint until);
  /// The number of the try on which all have agreed to go on without those.
  uint64_t agree_on_try(const std::vector<uint32_t>& gone, TimePoint until);
  std::vector<uint32_t> others() const;
  std::optional<uint32_t> rank_at(uint32_t slot) const;
  /// Until `arrived(rank)` has held once for every rank of `ranks`.
  void await(const std::vector<uint32_t>& ranks, const std::string& what, TimePoint until,
             const std::function<bool(uint32_t rank)>& arrived);

  std::shared_ptr<Mesh> mesh_;
  Membership membership_;
  Accelerator& accelerator_;
  AbortFlag& abort_flag_;
  uint64_t sequence_ = 0;
  uint64_t agreed_ = 0;  ///< the last try to rebuild this world on which all have agreed
  uint64_t watch_ = 0;
};

}  // namespace tokenyard
