/// How far a rendezvous has come: written by the thread that runs it, read by the caller, who turns
/// it into an error that says who is missing and who was turned away.
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
  /// Somebody was turned away. Says so on standard error, for the first few.
  void refused(const std::string& who, const std::string& why);
  /// What went wrong last in a thing that is tried again.
  void trouble(std::string what);

  std::vector<std::string> refusals() const;
  PeerTimeout timeout(double waited_s) const;

 private:
  static constexpr size_t kRefusalsKept = 16;

  const uint32_t rank_;
  mutable std::mutex mutex_;
  std::string phase_ = "rendezvous";
  std::vector<uint32_t> missing_;
  size_t awaited_ = 0;  ///< ranks that were missing when the phase began
  std::vector<std::string> refusals_;
  std::string trouble_;
};

}  // namespace tokenyard::tcp
