/// tokenyard-doctor: prints what works on this machine.
#include <cstdio>
#include <string_view>

#include "tokenyard/doctor.hpp"

int main(int arguments, char** argument) {
  if (arguments > 1) {
    const bool asked = std::string_view(argument[1]) == "--help";
    std::fputs(
        "usage: tokenyard-doctor\nPrints GPUs, links, driver, toolkit, and which fabrics "
        "work here.\n",
        asked ? stdout : stderr);
    return asked ? 0 : 2;
  }
  std::fputs(tokenyard::doctor().text().c_str(), stdout);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  std::perror("tokenyard-doctor: standard output");
  return 1;
}
