/// Another way for bytes to travel between hosts, by a library that a site has and we do not need:
/// a shared object that is loaded when somebody asks for it, and offers channels.
///
/// The two ends of such a channel know each other by a number each, which they have told one
/// another over an authenticated connection (interconnected_channel.hpp). What names no number that
/// is listened at is dropped: so a process of an older epoch, or a stranger, says nothing to
/// anybody.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/interfaces/channel.hpp"

namespace tokenyard::collectives {

/// A channel that listens from the beginning, and says nothing before it is connected.
class NumberedChannel : public Channel {
 public:
  virtual uint64_t number() const = 0;
  /// To the other end. Once.
  virtual void connect(std::span<const std::byte> address, uint64_t number) = 0;
};

/// One of a process and epoch; used like the transport that owns it. Its channels end with it, and
/// must not be used after it.
class Interconnect {
 public:
  virtual ~Interconnect() = default;
  /// How others reach it.
  virtual const std::vector<std::byte>& address() const = 0;
  virtual std::unique_ptr<NumberedChannel> channel() = 0;
  /// Makes progress without waiting.
  virtual void poll() = 0;
  /// From now on `descriptor` becomes readable when there is something to do. False: there is
  /// already.
  virtual bool prepare_to_sleep() = 0;
  virtual int descriptor() const = 0;
};

/// What the shared object exports: `tokenyard_interconnect_version`, which says for which version
/// of this file it was built, and `tokenyard_make_interconnect`, a MakeInterconnect.
inline constexpr uint32_t kInterconnectVersion = 1;
using MakeInterconnect = Interconnect*();

/// A shared object that stays loaded.
class InterconnectPlugin {
 public:
  /// A path, or a name as the system's loader looks for it. Throws Unsupported where it is missing
  /// or of another version.
  explicit InterconnectPlugin(const std::string& library);
  /// Throws OsError or Unsupported where the library has no way to reach anybody.
  std::unique_ptr<Interconnect> make() const;

 private:
  MakeInterconnect* make_ = nullptr;
};

}  // namespace tokenyard::collectives
