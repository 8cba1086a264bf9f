#include "simulation/suite.hpp"

namespace tokenyard::simulation {
namespace {

/// A local static, since suites in other files register before this file's own statics exist.
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
