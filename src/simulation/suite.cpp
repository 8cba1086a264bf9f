#include "simulation/suite.hpp"

namespace tokenyard::simulation {
namespace {

/// A local static, because suites in other files may register before this file's statics exist.
std::vector<Suite>& registry() {
  static std::vector<Suite> list;
  return list;
}

}  // namespace

bool add_suite(Suite suite) {
  registry().push_back(std::move(suite));
  return true;
}

const std::vector<Suite>& suites() {
  return registry();
}

}  // namespace tokenyard::simulation
