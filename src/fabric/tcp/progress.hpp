/// The progress of a rendezvous: written by the thread that runs it, and read by the caller, which
/// turns it into an error that names the missing ranks and the refused connections.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tokenyard/error.hpp"

namespace tokenyard::tcp {

class Progress {
 public:
  explicit Progress(uint32_t rank) : rank_(rank) {}

  void enter(std::string phase, std::vector<uint32_t> missing);
  void missing(std::vector<uint32_t> ranks);
  void arrived(uint32_t rank);
  /// Records a refused connection and reports it on standard error, up to kRefusalsKept of them.
  void refused(const std::string& who, const std::string& why);
  /// Records the last failure of a step that will be retried.
  void trouble(std::string what);

  std::vector<std::string> refusals() const;
  PeerTimeout timeout(double waited_s) const;

 private:
  static constexpr size_t kRefusalsKept = 16;

  const uint32_t rank_;
  mutable std::mutex mutex_;
  std::string phase_ = "rendezvous";
  std::vector<uint32_t> missing_;
  size_t awaited_ = 0;  ///< number of ranks that were missing when the phase began
  std::vector<std::string> refusals_;
  std::string trouble_;
};

}  // namespace tokenyard::tcp
