/// A collective that survives a rank: three processes add up numbers, one of them dies, and the
/// other two go on.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <span>
#include <tokenyard/collectives.hpp>
#include <vector>

namespace {

constexpr uint32_t kRanks = 3, kElements = 1000;

/// Returns 32 random hexadecimal digits: strangers must not guess a job's secret.
std::string draw_secret() {
  std::random_device random;
  std::string secret;
  for (int word = 0; word < 4; ++word) {
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08x", random());
    secret += digits;
  }
  return secret;
}

/// Returns 0 if every sum was right.
int run_rank(const std::string& store, const std::string& secret, uint32_t rank) {
  tokenyard::CollectivesOptions options;
  options.store = store;
  options.secret = secret;
  options.rank = rank;
  options.size = kRanks;
  options.address = "127.0.0.1";
  options.silence = std::chrono::seconds(1);
  const auto collectives = tokenyard::Collectives::connect(options);
  tokenyard::Group world = collectives->world();

  const auto sum = [&] {
    std::vector<float> values(kElements, static_cast<float>(rank + 1));
    world.all_reduce(tokenyard::TensorView::of(std::span(values)), tokenyard::ReduceOp::sum).wait();
    return values[kElements - 1];
  };

  const float of_three = sum();
  std::printf("rank %u: 1 + 2 + 3 = %g\n", rank, of_three);
  std::fflush(stdout);
  if (rank == 2) _exit(0);  // Dies without a word.
  try {
    sum();
    return 1;
  } catch (const tokenyard::OperationAborted& error) {
    std::printf("rank %u: %s\n", rank, error.what());
  }
  collectives->shrink();
  const float of_two = sum();
  std::printf("rank %u: 1 + 2 = %g among the survivors\n", rank, of_two);
  collectives->leave();
  return of_three == 6 && of_two == 3 ? 0 : 1;
}

}  // namespace

int main(int arguments, char** argument) {
  if (arguments > 1) {
    const bool asked = std::strcmp(argument[1], "--help") == 0;
    std::fprintf(asked ? stdout : stderr,
                 "usage: %s\n%u processes add up numbers; one dies, and the others go on.\n",
                 argument[0], kRanks);
    if (!asked) std::fprintf(stderr, "unknown option %s\n", argument[1]);
    return asked ? 0 : 2;
  }
  std::string directory = (std::filesystem::temp_directory_path() / "tokenyard-XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) return 1;
  const std::string secret = draw_secret();
  for (uint32_t rank = 0; rank < kRanks; ++rank)
    if (fork() == 0) {
      int status = 1;
      try {
        status = run_rank("file:" + directory, secret, rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %u: %s\n", rank, error.what());
      }
      std::fflush(stdout);
      _exit(status);
    }
  int failed = 0, status = 0;
  while (wait(&status) > 0) failed += status != 0;
  std::filesystem::remove_all(directory);
  return failed == 0 ? 0 : 1;
}
