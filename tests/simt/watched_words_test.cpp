/// A thread that waits for a word sleeps until the word has changed; one that waits for something
/// else is still woken.
#include "simt/watched_words.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "device/device.hpp"
#include "simt/host_accelerator.hpp"

namespace tokenyard::testing {
namespace {

using simt::HostAccelerator;
using simt::WatchedWords;

TEST(WatchedWords, NoticeAnyByteOfWordsOfAllSizes) {
  for (const uint32_t bytes : {1u, 2u, 4u, 8u, 16u}) {
    alignas(16) unsigned char word[16] = {};
    for (uint32_t changed = 0; changed < bytes; ++changed) {
      WatchedWords words;
      words.saw(word, word, bytes);
      EXPECT_TRUE(words.hold_the_same());
      ++word[changed];
      EXPECT_FALSE(words.hold_the_same()) << "byte " << changed << " of " << bytes;
    }
  }
}

TEST(WatchedWords, PromiseNothingOfWhatTheyDoNotKnow) {
  alignas(16) uint32_t word[4] = {7};
  WatchedWords words;
  EXPECT_FALSE(words.hold_the_same()) << "of no words";
  for (uint32_t i = 0; i < 100; ++i) words.saw(word, word, sizeof(word[0]));
  EXPECT_FALSE(words.hold_the_same()) << "of more words than are kept";
  words.forget();
  words.saw(word, word, sizeof(word[0]));
  EXPECT_TRUE(words.hold_the_same());
  words.acted();
  EXPECT_FALSE(words.hold_the_same()) << "of a wait that writes";
}

struct WaitParams {
  uint32_t steps;
  uint32_t* word;
  uint32_t* noise;  ///< [32] words that change all the time
  uint32_t* looks;  ///< [32] polls of each waiting thread
  WaitContext wait_context;
};

/// The second warp waits for a word, while the first writes others and synchronises.
void wait_body(const WaitParams& params) {
  if (warp::index() == 0) {
    for (uint32_t step = 0; step < params.steps; ++step) {
      store<Order::relaxed, Scope::gpu>(params.noise + thread::index(), step);
      warp::sync();
    }
    if (thread::index() == 0) store<Order::release, Scope::gpu>(params.word, 1);
    return;
  }
  Awaited what{};
  wait_until(params.wait_context.start(), what, [&] {
    ++params.looks[warp::lane()];
    return load<Order::acquire, Scope::gpu>(params.word) == 1;
  });
}

/// Threads wait for a point in time, for a lock, and for a word that they read at every 8th poll.
void other_waits_body(const WaitParams& params) {
  const uint64_t begun_ns = now_ns();
  Awaited what{};
  const Deadline deadline = params.wait_context.start();
  wait_until(deadline, what, [&] { return now_ns() - begun_ns > 1'000'000; });
  wait_until(deadline, what,
             [&] { return exchange<Order::acq_rel, Scope::gpu>(params.word, 1u) == 0; });
  ++*params.looks;
  store<Order::release, Scope::gpu>(params.word, 0);
  uint32_t polls = 0;
  wait_until(deadline, what, [&] {
    return ++polls % 8 == 0 && load<Order::acquire, Scope::gpu>(params.noise) == 0;
  });
}

TOKENYARD_DEFINE_HOST_KERNEL(wait_kernel, wait_body, WaitParams, NoShared, 64)
TOKENYARD_DEFINE_HOST_KERNEL(other_waits_kernel, other_waits_body, WaitParams, NoShared, 64)

class Watching : public ::testing::Test {
 protected:
  void launch(const Kernel<WaitParams>& kernel) {
    const WaitParams params{.steps = 1000,
                            .word = &word_,
                            .noise = noise_.data(),
                            .looks = looks_.data(),
                            .wait_context = {.timeout_ns = 60'000'000'000,
                                             .failed = &failed_,
                                             .abort_flag = &abort_flag_,
                                             .report = &report_}};
    tokenyard::launch(accelerator_, kernel, {.blocks = 1, .warps = 2}, {}, params);
    EXPECT_EQ(failed_, 0u);
  }

  HostAccelerator accelerator_{[] {}};
  std::vector<uint32_t> noise_ = std::vector<uint32_t>(32), looks_ = std::vector<uint32_t>(32);
  uint32_t word_ = 0, failed_ = 0;
  AbortWord abort_flag_ = 0;
  WaitReport report_{};
};

TEST_F(Watching, AWaitLooksAgainWhenItsWordHasChanged) {
  launch(wait_kernel);
  // Each thread polls once in a while, but not after each of the 32,000 stores.
  for (const uint32_t looks : looks_) EXPECT_LT(looks, 50u);
}

TEST_F(Watching, WaitsForWhatIsNoWordEnd) {
  launch(other_waits_kernel);
  EXPECT_EQ(looks_[0], 64u);
}

}  // namespace
}  // namespace tokenyard::testing
