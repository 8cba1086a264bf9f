/// A job of real processes that goes on whatever happens to them. Each rank runs one operation
/// after another, checks every result, repeats aborted operations, and writes into a diary that the
/// test reads.
#pragma once

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/wire_processes.hpp"
#include "fabric/promise.hpp"
#include "fabric/worlds.hpp"
#include "tokenyard/collectives.hpp"

namespace tokenyard::collectives {

inline constexpr uint32_t kRanksMax = 8;
inline constexpr uint32_t kNobody = UINT32_MAX;

/// How a rank ended.
enum class Fate : uint32_t { at_work, fenced, no_quorum, timed_out };

inline int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

/// One rank's page, written by the rank and read by the test.
struct Page {
  std::atomic<uint64_t> begun = 0, done = 0;  ///< operations
  std::atomic<uint64_t> aborts = 0;
  /// Time of the last reported failure, and of the first success after it.
  std::atomic<int64_t> aborted_at = 0, good_at = 0;
  std::atomic<uint32_t> members = 0;             ///< at its last success
  std::atomic<bool> hold = false, held = false;  ///< pauses between two operations
  std::atomic<Fate> fate = Fate::at_work;
  std::atomic<uint32_t> blamed = kNobody;  ///< rank named by a PeerTimeout
  std::array<char, 256> words{};           ///< message of the PeerTimeout, written before `fate`
};

struct Diary {
  std::array<Page, kRanksMax> pages;
  std::atomic<bool> stop = false;
  std::atomic<uint32_t> replace = kNobody;  ///< rank to be replaced
  std::atomic<uint32_t> size = 0;           ///< size that the job shall grow to
  std::atomic<size_t> elements = 96 << 10;  ///< of the larger arrays
  std::atomic<bool> pause = false;          ///< all pause after the same operation
};

/// The part of one process.
class ElasticRank {
 public:
  ElasticRank(Collectives& collectives, Diary& diary)
      : collectives_(collectives),
        world_(collectives.world()),
        diary_(diary),
        page_(diary.pages[collectives.rank()]) {}

  /// A process that has joined asks the others, which have called `replace`, for their step.
  void find_place_among_others() {
    agree_on_step();
    ++step_;
  }
  /// A process that takes part in the very operation that its predecessor did not reach: that one
  /// was held before a step, and each step is two operations.
  void take_up_where_the_last_one_stopped() { step_ = page_.done / 2; }

  /// Runs until the test says stop.
  void run() {
    for (;; ++step_) {
      wait_while_held();
      operate();
      const int64_t order = highest(order_to_give());
      if (order == kStop) return;
      if (order == kNone) continue;
      if (order == kPause) {
        pause();
        continue;
      }
      order == kGrow ? collectives_.grow(1) : collectives_.replace(static_cast<uint32_t>(order));
      agree_on_step();
    }
  }

 private:
  static constexpr int64_t kNone = -1;
  static constexpr int64_t kStop = 1 << 20, kGrow = kStop - 1, kPause = kStop - 2;

  int64_t order_to_give() const {
    if (diary_.stop) return kStop;
    if (collectives_.size() < diary_.size) return kGrow;
    if (diary_.pause) return kPause;
    const uint32_t replace = diary_.replace;
    if (replace == kNobody) return kNone;
    for (const uint32_t rank : collectives_.active_ranks()) {
      if (rank == replace) return kNone;  // done already
    }
    return replace;
  }

  void wait_while_held() {
    page_.held = page_.hold.load();
    await("to be let go", [&] { return !page_.hold; });
    page_.held = false;
  }

  void pause() {
    page_.held = true;
    await("the end of the pause", [&] { return !diary_.pause; });
    page_.held = false;
  }

  void agree_on_step() { step_ = static_cast<uint64_t>(highest(static_cast<int64_t>(step_))); }

  /// Repeats the operation until it is not aborted.
  void until_done(const std::function<void()>& operation) {
    ++page_.begun;
    for (bool good = true;; good = false) {
      try {
        operation();
        if (!good) page_.good_at = now_ns();
        break;
      } catch (const OperationAborted&) {
        page_.aborted_at = now_ns();
        ++page_.aborts;
        collectives_.shrink();
      }
    }
    page_.members = static_cast<uint32_t>(collectives_.active_ranks().size());
    ++page_.done;
  }

  int64_t highest(int64_t mine) {
    int64_t value = mine;
    until_done([&] {
      testing::promise(value == mine, "an aborted operation has changed its input");
      world_.all_reduce({&value, {1}}, ReduceOp::max).wait();
    });
    return value;
  }

  /// A rank's contribution to this step.
  int64_t brought_by(uint32_t rank) const { return static_cast<int64_t>(step_ * 16 + rank + 1); }

  int64_t sum_of(const std::vector<uint32_t>& ranks) const {
    int64_t sum = 0;
    for (const uint32_t rank : ranks) sum += brought_by(rank);
    return sum;
  }

  void operate() {
    switch (step_ % 4) {
      case 0:
        return reduce_all(diary_.elements);
      case 1:
        return gather_all();
      case 2:
        return reduce_all(1);
      default:
        return until_done([&] { world_.barrier().wait(); });
    }
  }

  void reduce_all(size_t elements) {
    const int64_t mine = brought_by(world_.rank());
    values_.assign(elements, mine);
    until_done([&] {
      check(mine, "an aborted all_reduce has changed its input");
      const int64_t before = sum_of(collectives_.active_ranks());
      world_.all_reduce({values_.data(), {elements}}, ReduceOp::sum).wait();
      // It may have been the last operation of its epoch, or the first of the next.
      const int64_t after = sum_of(collectives_.active_ranks());
      check(values_[0] == before ? before : after, "all_reduce is wrong");
    });
  }

  void gather_all() {
    const int64_t mine = brought_by(world_.rank());
    until_done([&] {
      std::vector<int64_t> all(world_.size(), 0);
      std::vector<TensorView> parts;
      for (int64_t& part : all) parts.push_back({&part, {1}});
      world_.all_gather({&mine, {1}}, parts).wait();
      for (const uint32_t rank : collectives_.active_ranks()) {
        testing::promise(all[rank] == brought_by(rank), "all_gather is wrong");
      }
    });
  }

  void check(int64_t expected, const char* what) const {
    for (const int64_t value : values_) {
      testing::promise(value == expected, fmt::format("{}: {}, not {}", what, value, expected));
    }
  }

  Collectives& collectives_;
  Group world_;
  Diary& diary_;
  Page& page_;
  uint64_t step_ = 0;
  std::vector<int64_t> values_;
};

/// The processes, and the test's actions on them.
class ElasticJob {
 public:
  using Change = std::function<void(CollectivesOptions&)>;

  explicit ElasticJob(
      uint32_t ranks, Change change = [](CollectivesOptions&) {})
      : ranks_(ranks), change_(std::move(change)) {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tokenyard-job-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no directory");
    directory_ = pattern;
    start_ = [this](uint32_t rank) { begin(rank, false); };
  }
  ~ElasticJob() {
    processes_.reset();
    newcomers_.clear();
    std::filesystem::remove_all(directory_);
  }

  /// `call` runs first in every process of the job.
  void on_start(std::function<void(uint32_t rank)> call) { on_start_ = std::move(call); }
  void start() { processes_ = std::make_unique<RankProcesses>(ranks_, start_); }
  /// Starts a process for the slot of a lost rank, or for a new slot.
  void start_newcomer(uint32_t rank) {
    newcomers_.push_back(
        std::make_unique<RankProcesses>(1, [this, rank](uint32_t) { begin(rank, true); }));
  }

  Diary& diary() { return *diary_.operator->(); }
  Page& page(uint32_t rank) { return diary_->pages.at(rank); }
  void signal(uint32_t rank, int number) { processes_->signal(rank, number); }
  /// Returns the number of operations that the rank has done.
  uint64_t done(uint32_t rank) { return page(rank).done; }

  void await_progress(const std::vector<uint32_t>& ranks, uint64_t operations = 8) {
    std::array<uint64_t, kRanksMax> before{};
    for (const uint32_t rank : ranks) before[rank] = done(rank);
    await("progress", [&] {
      for (const uint32_t rank : ranks) {
        if (done(rank) < before[rank] + operations) return false;
      }
      return true;
    });
  }
  void await_members(const std::vector<uint32_t>& ranks, uint32_t members) {
    await(fmt::format("{} members", members), [&] {
      for (const uint32_t rank : ranks) {
        if (page(rank).members != members) return false;
      }
      return true;
    });
  }
  /// Ends the job in good order; throws if one of these ranks, or a newcomer, did not end well.
  void finish(const std::vector<uint32_t>& ranks) {
    diary_->stop = true;
    for (const uint32_t rank : ranks) expect_success(*processes_, rank, rank);
    for (const auto& newcomer : newcomers_) expect_success(*newcomer, 0, kNobody);
  }
  int wait(uint32_t rank) { return processes_->wait(rank); }

  CollectivesOptions options(uint32_t rank) const {
    CollectivesOptions options;
    options.store = "file:" + directory_.string();
    options.secret = "only we know";
    options.address = "127.0.0.1";
    options.rank = rank;
    options.size = ranks_;
    options.timeout = std::chrono::seconds(20);
    options.silence = std::chrono::seconds(10);
    change_(options);
    return options;
  }

 private:
  static void expect_success(RankProcesses& processes, uint32_t at, uint32_t rank) {
    const int status = processes.wait(at);
    testing::promise(status == 0, fmt::format("rank {} ended with {}", rank, status));
  }

  void begin(uint32_t rank, bool join) {
    Page& page = diary_->pages[rank];
    try {
      on_start_(rank);
      const CollectivesOptions options = this->options(rank);
      const auto collectives = join ? Collectives::join(options) : Collectives::connect(options);
      ElasticRank work(*collectives, diary());
      if (join && options.on_failure == OnFailure::retry) {
        work.take_up_where_the_last_one_stopped();
      } else if (join) {
        work.find_place_among_others();
      }
      try {
        work.run();
      } catch (const PeerTimeout& error) {
        page.aborted_at = now_ns();
        page.blamed = error.facts.rank;
        std::string(error.what()).copy(page.words.data(), page.words.size() - 1);
        page.fate = Fate::timed_out;
        // A rank that left at once might be blamed for it by others.
        await("the end", [this] { return diary_->stop.load(); });
      }
    } catch (const tokenyard::Fenced&) {
      page.fate = Fate::fenced;
      // It may come back, under a new incarnation.
      const auto again = Collectives::join(options(rank));
      ElasticRank work(*again, diary());
      work.find_place_among_others();
      work.run();
    } catch (const QuorumLost&) {
      page.fate = Fate::no_quorum;
    }
  }

  const uint32_t ranks_;
  const Change change_;
  std::filesystem::path directory_;
  SharedBoard<Diary> diary_;
  std::function<void(uint32_t)> on_start_ = [](uint32_t) {};
  std::function<void(uint32_t)> start_;
  std::unique_ptr<RankProcesses> processes_;
  std::vector<std::unique_ptr<RankProcesses>> newcomers_;
};

}  // namespace tokenyard::collectives
