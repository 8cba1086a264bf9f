/// All exceptions of Tokenyard. Each class has fields, and its message is made from them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace tokenyard {

/// Base of all errors.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An invalid argument, by itself or compared with another rank's. If this rank's host could see
/// the error, nothing was launched or sent; if only the ranks together could, no row has moved.
class InvalidArgument : public Error {
 public:
  InvalidArgument(std::string argument, std::string expected, std::string seen,
                  std::optional<uint32_t> rank = std::nullopt);
  std::string argument, expected, seen;
  std::optional<uint32_t> rank;  ///< the rank whose argument it is; unset: this rank's own
};

/// The state of a wait when it failed.
struct WaitFacts {
  uint32_t rank = 0;  ///< the awaited rank
  std::string phase;  ///< "dispatch: counts", "rendezvous: connect", ...
  uint64_t expected = 0, seen = 0;
  double waited_s = 0;
};

/// A rank did not answer before the deadline.
class PeerTimeout : public Error {
 public:
  explicit PeerTimeout(WaitFacts facts);
  WaitFacts facts;
};

/// A rank has left, or its control connection has closed.
class PeerLost : public Error {
 public:
  explicit PeerLost(WaitFacts facts);
  WaitFacts facts;
};

/// This rank did not run for a while (it was stopped, or got no CPU), so its wait failed; or the
/// others have rebuilt the world without it. No other rank is to blame.
class OutOfTouch : public Error {
 public:
  /// `left_out`: the rank in `facts` has rebuilt the world without this one.
  OutOfTouch(WaitFacts facts, std::optional<std::chrono::system_clock::time_point> since,
             std::chrono::nanoseconds absent, bool left_out);
  WaitFacts facts;                                             ///< of the failed wait
  std::optional<std::chrono::system_clock::time_point> since;  ///< when it stopped, if known
  double absent_s;  ///< seconds for which it did not run; 0 if it ran
  bool left_out;
};

/// The caller ended the wait (Ctrl-C, World::cancel).
class Cancelled : public Error {
 public:
  explicit Cancelled(const std::string& phase);
  std::string phase;
};

/// Ranks were lost during an operation, so it has not happened on any rank, and inputs are
/// unchanged.
class OperationAborted : public Error {
 public:
  OperationAborted(std::string operation, uint64_t sequence, uint64_t epoch,
                   std::vector<uint32_t> lost);
  std::string operation;  ///< "all_reduce"
  uint64_t sequence;      ///< number within its group
  uint64_t epoch;  ///< epoch in which ranks were lost; if a root or peer was lost earlier, the
                   ///< epoch before that of the call
  std::vector<uint32_t> lost;
};

/// Too few ranks answer to go on; the other ranks may have gone on without them.
class QuorumLost : public Error {
 public:
  QuorumLost(std::vector<uint32_t> answering, uint32_t needed);
  std::vector<uint32_t> answering;
  uint32_t needed;
};

/// The others have gone on without this rank, which was silent for too long or was evicted. It may
/// join again.
class Fenced : public Error {
 public:
  Fenced(uint64_t epoch, const std::string& why);
  uint64_t epoch;  ///< first epoch without it
};

/// The network refused a request that a kernel of this rank posted, since its key, range or size is
/// wrong: a mistake of the code that posted it. The queue has ended.
class NetworkFault : public Error {
 public:
  struct Facts {
    uint32_t rank = 0, peer = 0;  ///< the rank that posted the request, and its target
    uint32_t queue = 0;           ///< number among the queues to `peer`
    uint32_t region = 0;  ///< of the peer's memory or, if `check` is of a source, this rank's
    std::string check;    ///< "target key", "source range", "size", ..., "connection", "thread"
    std::string phase;    ///< in which the kernel noticed
    uint64_t expected = 0, seen = 0;  ///< keys; bytes: at most, asked; requests: posted, done
    std::string cause = {};           ///< of a failed "connection" or "thread"
  };
  explicit NetworkFault(Facts facts);
  Facts facts;
};

/// The feature exists, but not on this machine or in this build; `why` says why.
class Unsupported : public Error {
 public:
  Unsupported(std::string what, std::string why);
  std::string what_asked, why;
};

/// A system or driver call failed.
class OsError : public Error {
 public:
  OsError(std::string call, int code, std::string text);
  std::string call;
  int code;
};

/// A broken invariant of Tokenyard: a bug.
class InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace tokenyard
