/// Everything that Tokenyard throws. Each class carries fields; the sentence is made from them.
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

/// An argument that cannot be right, here or against another rank's. Nothing was launched or sent
/// when this rank's host could see it; no row had moved when it took the ranks together.
class InvalidArgument : public Error {
 public:
  InvalidArgument(std::string argument, std::string expected, std::string seen,
                  std::optional<uint32_t> rank = std::nullopt);
  std::string argument, expected, seen;
  std::optional<uint32_t> rank;  ///< whose argument, where it is not this rank's own
};

/// What a wait knew when it failed.
struct WaitFacts {
  uint32_t rank = 0;  ///< the rank awaited
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

/// A rank is gone: it has left, or its control connection closed.
class PeerLost : public Error {
 public:
  explicit PeerLost(WaitFacts facts);
  WaitFacts facts;
};

/// This rank has not run for a while (it was stopped, or got no CPU), so that its wait failed; or
/// the others have rebuilt the world without it. No other rank is to blame.
class OutOfTouch : public Error {
 public:
  /// `left_out`: whether a rank, that of `facts`, has rebuilt the world without this one.
  OutOfTouch(WaitFacts facts, std::optional<std::chrono::system_clock::time_point> since,
             std::chrono::nanoseconds absent, bool left_out);
  WaitFacts facts;                                             ///< of the wait that failed
  std::optional<std::chrono::system_clock::time_point> since;  ///< if it is known not to have run
  double absent_s;                                             ///< 0 if it has run
  bool left_out;
};

/// The caller ended the wait (Ctrl-C, World::cancel).
class Cancelled : public Error {
 public:
  explicit Cancelled(const std::string& phase);
  std::string phase;
};

/// Ranks were lost in an operation of theirs, so it has not happened on any rank; inputs are as
/// they were.
class OperationAborted : public Error {
 public:
  OperationAborted(std::string operation, uint64_t sequence, uint64_t epoch,
                   std::vector<uint32_t> lost);
  std::string operation;  ///< "all_reduce"
  uint64_t sequence;      ///< its number within its group
  uint64_t epoch;  ///< in which ranks were lost; of a root or peer that had long been, the one
                   ///< before that of the call
  std::vector<uint32_t> lost;
};

/// Too few ranks answer to go on: it might be the others that are right.
class QuorumLost : public Error {
 public:
  QuorumLost(std::vector<uint32_t> answering, uint32_t needed);
  std::vector<uint32_t> answering;
  uint32_t needed;
};

/// The others have gone on without this rank, which had been silent for too long. It may join
/// again.
class Fenced : public Error {
 public:
  Fenced(uint64_t epoch, const std::string& why);
  uint64_t epoch;  ///< the first without it
};

/// What was asked for exists, but not here; says why.
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

/// A broken invariant of ours.
class InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace tokenyard
