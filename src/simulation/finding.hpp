/// The faults found in a simulated run, as text.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "simulation/race_detector.hpp"

namespace tokenyard::simulation {

/// Returns "src/x.hpp:12" for a code address. The caller provides it, because it is slow.
using SourceLines = std::function<std::string(CodeAddress)>;

/// A fault with the places in the source that are involved.
struct Finding {
  std::string title;  ///< one line: "race on 4 bytes of ...", "misuse: ..."
  struct Part {
    std::string text;
    CodeAddress where;  ///< null if unknown
  };
  std::vector<Part> parts;

  std::string text(const SourceLines& lines) const;
};

/// Collects findings, once per pair of places.
class Findings : public RaceSink {
 public:
  Findings(const std::vector<Actor>& actors, Regions& regions)
      : actors_(actors), regions_(regions) {}

  void found(const Race& race) override;
  void misuse(std::string title, const Actor& who, CodeAddress where);
  const std::vector<Finding>& list() const { return list_; }

 private:
  static constexpr size_t kFindingsMax = 50;

  Finding::Part part(const Access& access) const;

  const std::vector<Actor>& actors_;
  Regions& regions_;
  std::vector<Finding> list_;
  std::set<std::tuple<CodeAddress, CodeAddress, RaceReason>> seen_races_;
  std::set<std::pair<std::string, CodeAddress>> seen_misuses_;
};

}  // namespace tokenyard::simulation
