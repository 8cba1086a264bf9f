// Runs a fuzz target over the files of its corpus: replay FOLDER.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/fuzz.hpp"

int main(int count, char** arguments) {
  if (count != 2) {
    fmt::print(stderr, "usage: {} FOLDER\n", arguments[0]);
    return 2;
  }
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ++files;
  }
  fmt::print("{} inputs\n", files);
  return files == 0 ? 1 : 0;
}
