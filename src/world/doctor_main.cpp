/// tokenyard-doctor: prints what works on this machine, and what to do about the rest.
#include <cstdio>
#include <string_view>

#include "tokenyard/doctor.hpp"

namespace {

constexpr const char* kUsage =
    R"(usage: tokenyard-doctor [--json] [--no-self-test]
Prints GPUs, links, driver, toolkit, which fabrics work here, the rate of a dispatch and a combine
among ranks of this machine, and what to do about each thing that does not work.
  --json          the same for programs: the keys are described in docs/jobs.md
  --no-self-test  leaves out the dispatch and the combine, which take a second per device
)";

}  // namespace

int main(int arguments, char** argument) {
  bool json = false, self_test = true;
  for (int i = 1; i < arguments; ++i) {
    const std::string_view option = argument[i];
    if (option == "--json") {
      json = true;
    } else if (option == "--no-self-test") {
      self_test = false;
    } else {
      const bool asked = option == "--help" || option == "-h";
      if (!asked) std::fprintf(stderr, "tokenyard-doctor: unknown option %s\n", argument[i]);
      std::fputs(kUsage, asked ? stdout : stderr);
      return asked ? 0 : 2;
    }
  }
  tokenyard::Diagnosis found = tokenyard::doctor();
  if (self_test) found.self_tests = tokenyard::self_test(found);
  std::fputs((json ? found.json() : found.text()).c_str(), stdout);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  std::perror("tokenyard-doctor: standard output");
  return 1;
}
