/// Where TCP connections come in. Whoever connects has to show an invitation that is sealed with
/// the job's secret, within seconds; everybody else is put out, and counted. There is room for a
/// few strangers at a time, so that many of them cost no more, and nobody waits for any.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <string>
#include <vector>

#include "collectives/transports/dial.hpp"
#include "collectives/transports/epoch_gate.hpp"

namespace tokenyard::collectives {

struct Guest {
  Invitation invitation;
  net::Digest welcome;  ///< to be sent by whoever lets the guest in
  FileDescriptor socket;
};

class Door {
 public:
  /// At any free port of the address. Throws OsError.
  Door(const EpochGate& gate, const net::Key& key, const std::string& address,
       net::Sleeper& sleeper, int buffer_bytes);

  const std::string& address() const { return listening_.address; }
  uint16_t port() const { return listening_.port; }

  /// Those whose time is now.
  std::vector<Guest> poll(WireTime now);
  /// Connections wait outside that could not be let in for want of descriptors.
  bool is_short() const { return short_; }
  void count_refused() { ++refused_; }
  /// Any thread may ask.
  uint64_t refused() const { return refused_; }

  static constexpr size_t kStrangersMax = 64;
  static constexpr std::chrono::seconds kStrangerTime{3};

 private:
  struct Stranger {
    FileDescriptor socket;
    WireTime since;
    std::array<std::byte, kInvitationBytes> bytes{};
    size_t got = 0;
  };

  void accept_all(WireTime now);
  /// Whether there is no more to do with this one.
  bool hear(Stranger& stranger, WireTime now, std::vector<Guest>& guests);

  const EpochGate& gate_;
  const net::Key key_;
  const net::Listening listening_;
  net::Sleeper& sleeper_;
  const int buffer_bytes_;
  std::deque<Stranger> strangers_;  ///< the oldest first
  std::vector<Guest> early_;
  bool short_ = false;
  std::atomic<uint64_t> refused_ = 0;
};

}  // namespace tokenyard::collectives
