/// The measured scenes: shapes, loads of the experts, numbers of multiprocessors.
#pragma once

#include <fmt/core.h>

#include <string>
#include <vector>

#include "bench/harness/workload.hpp"

namespace tokenyard::bench {

struct Scene {
  Shape shape;
  double skew = 0;  ///< Zipf exponent of the experts' load; 0: uniform
  std::vector<uint32_t> sms;

  /// Returns the part of the description that the table's columns do not show.
  std::string remark() const {
    std::string text;
    if (shape.topk != 8) text += fmt::format(", top-{}", shape.topk);
    if (skew != 0) text += fmt::format(", Zipf {}", skew);
    return text;
  }
};

/// Returns the given scene with several numbers of multiprocessors, then with one change at a time.
inline std::vector<Scene> sweep(const Scene& base) {
  std::vector<Scene> scenes{base};
  scenes[0].sms = {4, 8, 12, 16, 24, 32, 48};
  const auto vary = [&](auto change) {
    Scene scene = base;
    scene.sms = {16};
    change(scene);
    scenes.push_back(scene);
  };
  for (const uint32_t tokens : {128, 512, 1024, 2048, 8192, 16384})
    vary([&](Scene& scene) { scene.shape.tokens = tokens; });
  for (const uint32_t hidden : {2048, 4096, 5120})
    vary([&](Scene& scene) { scene.shape.hidden = hidden; });
  for (const uint32_t topk : {4, 6}) vary([&](Scene& scene) { scene.shape.topk = topk; });
  vary([&](Scene& scene) { scene.skew = 1.2; });
  return scenes;
}

}  // namespace tokenyard::bench
