/// An alternative network between hosts, by a library that a site has and Tokenyard does not need:
/// a shared object, loaded on request, that provides channels.
///
/// The two ends of a channel know each other by one number each, exchanged over an authenticated
/// connection (interconnected_channel.hpp). Invariant: a message whose number has no listener is
/// dropped, so a process of an older epoch, or a stranger, reaches nobody.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/interfaces/channel.hpp"

namespace tokenyard::collectives {

/// A channel that receives from the start, and sends once connected.
class NumberedChannel : public Channel {
 public:
  virtual uint64_t number() const = 0;
  /// Connects to the other end. Called once.
  virtual void connect(std::span<const std::byte> address, uint64_t number) = 0;
};

/// One per process and epoch; called like the transport that owns it. Its channels end with it and
/// must not be used afterwards.
class Interconnect {
 public:
  virtual ~Interconnect() = default;
  /// Returns the address at which others reach it.
  virtual const std::vector<std::byte>& address() const = 0;
  virtual std::unique_ptr<NumberedChannel> channel() = 0;
  /// Makes progress without waiting.
  virtual void poll() = 0;
  /// Makes `descriptor` readable from now on when there is work. Returns false if there is work
  /// already.
  virtual bool prepare_to_sleep() = 0;
  virtual int descriptor() const = 0;
};

/// The shared object exports `tokenyard_interconnect_version`, the version of this file for which
/// it was built, and `tokenyard_make_interconnect`, a MakeInterconnect.
inline constexpr uint32_t kInterconnectVersion = 1;
using MakeInterconnect = Interconnect*();

/// A loaded shared object; it stays loaded.
class InterconnectPlugin {
 public:
  /// `library`: a path, or a name for the system's loader. Throws Unsupported if it is missing or
  /// has another version.
  explicit InterconnectPlugin(const std::string& library);
  /// Throws OsError or Unsupported if the library finds no usable network.
  std::unique_ptr<Interconnect> make() const;

 private:
  MakeInterconnect* make_ = nullptr;
};

}  // namespace tokenyard::collectives
