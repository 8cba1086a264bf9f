/// A task that checks the order in which it ran: each cell that it reads must hold the mark of the
/// graph's last writer before it, and each cell that it writes gets its own mark.
#pragma once

#include "megakernel/kernels/worker_kernel.hpp"

namespace tokenyard::megakernel {

/// Words of a cell, all of which a writer fills with its mark.
inline constexpr uint32_t kCellWords = 4;

/// Words of a streamed unit.
inline constexpr uint32_t kUnitWords = 16;

/// Returns the content of a cell: its writer and the iteration. Cells hold 0 before any write.
TOKENYARD_HOST_DEVICE uint32_t mark_of(uint32_t writer, uint64_t iteration) {
  return (writer + 1) << 12 | static_cast<uint32_t>(iteration & 0xfff);
}

struct CellRead {
  Peer<uint32_t> at;
  uint32_t writer;      ///< task whose mark it should hold; UINT32_MAX: none writes it
  uint32_t iterations;  ///< how many iterations back
  /// For the cell of a share, since no task waits for a share that does not signal. shares 0: not
  /// the cell of a share.
  uint32_t share, shares;
};

/// The number of order violations, and the first one.
struct Disorder {
  uint32_t count;
  uint32_t task, expected, seen;
};

struct Touch {
  static constexpr const char* kName = "touch";
  struct Args {
    const CellRead* reads;
    const Peer<uint32_t>* writes;
    uint32_t read_count, write_count;
    uint32_t writer;  ///< this task's number among all ranks' tasks
    uint32_t haste;   ///< 0: runs at once; else a seed for how long it lingers
    Disorder* disorder;
    // A share in a dynamic event: the iteration decides which of `shares` tasks signal it.
    Event event;
    uint32_t event_rank;     ///< rank of the event
    uint32_t share, shares;  ///< shares 0: none; share == shares: this task counts
    const uint32_t* stream;  ///< [units][kUnitWords] each word is its unit's number
    uint32_t units;
    uint32_t last_of_run;  ///< iterations after which this task ends the loop; 0: never
  };

  /// Returns how many of the shares signal.
  static TOKENYARD_DEVICE uint32_t signals_of(uint32_t shares, uint64_t iteration) {
    return static_cast<uint32_t>(iteration * 7 + shares) % (shares + 1);
  }

  static TOKENYARD_DEVICE uint32_t units(const Args& args, uint32_t warp, uint32_t warps) {
    return args.units > warp ? (args.units - warp + warps - 1) / warps : 0;
  }
  static TOKENYARD_DEVICE StreamedRows stream(const Args& args, uint32_t warp, uint32_t warps) {
    constexpr uint32_t kBytes = kUnitWords * sizeof(uint32_t);
    return {.from = reinterpret_cast<const std::byte*>(args.stream + warp * kUnitWords),
            .row_stride = warps * kBytes,
            .rows = units(args, warp, warps),
            .row_bytes = kBytes,
            .piece_bytes = kBytes};
  }

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    linger(context, args);
    for (uint32_t i = 0; i < units(args, context.warp(), context.warps()); ++i)
      look_at_unit(context, args, i * context.warps() + context.warp());
    for (uint32_t i = context.thread(); i < args.read_count * kCellWords; i += context.threads())
      look(context, args, args.reads[i / kCellWords], i % kCellWords);
    context.sync();  // A cell that the task both reads and writes is read first.
    for (uint32_t i = context.thread(); i < args.write_count * kCellWords; i += context.threads())
      store<Order::weak, Scope::block>(args.writes[i / kCellWords] + i % kCellWords,
                                       mark_of(args.writer, context.iteration()));
    if (args.shares > 0) count(context, args);
    if (args.last_of_run > 0 && context.iteration_of_run() + 1 == args.last_of_run &&
        context.thread() == 0)
      for (uint32_t rank = 0; rank < context.ranks(); ++rank) context.end_loop(rank);
  }

 private:
  static TOKENYARD_DEVICE void linger(Context& context, const Args& args) {
    const uint32_t turns = args.haste == 0 ? 0 : (args.haste * 2654435761u >> 24) % 8;
    if (turns == 0) return;
    // One thread naps, and all wait for it.
    for (uint32_t turn = 0; context.thread() == 0 && turn < turns; ++turn) nap(0);
    context.sync();
  }

  static TOKENYARD_DEVICE void look(Context& context, const Args& args, const CellRead& cell,
                                    uint32_t word) {
    if (cell.shares > 0 && cell.share >= signals_of(cell.shares, context.iteration())) return;
    const bool never = cell.writer == UINT32_MAX || cell.iterations > context.iteration();
    const uint32_t expected =
        never ? 0 : mark_of(cell.writer, context.iteration() - cell.iterations);
    compare(args, expected, load<Order::weak, Scope::block>(cell.at + word));
  }

  static TOKENYARD_DEVICE void look_at_unit(Context& context, const Args& args, uint32_t number) {
    const auto* const words = reinterpret_cast<const uint32_t*>(context.next_unit());
    if (words != nullptr && warp::lane() < kUnitWords) compare(args, number, words[warp::lane()]);
    context.release_unit();
  }

  static TOKENYARD_DEVICE void compare(const Args& args, uint32_t expected, uint32_t seen) {
    if (seen == expected) return;
    // Relaxed: read once the kernel has ended.
    if (fetch_add<Order::relaxed, Scope::gpu>(&args.disorder->count, 1) != 0) return;
    args.disorder->task = args.writer;
    args.disorder->expected = expected;
    args.disorder->seen = seen;
  }

  static TOKENYARD_DEVICE void count(Context& context, const Args& args) {
    context.sync();  // The signal covers the stores of all threads.
    if (context.thread() != 0) return;
    const uint32_t signals = signals_of(args.shares, context.iteration());
    if (args.share == args.shares)
      context.expect(args.event, signals);
    else if (args.share < signals)
      context.signal(args.event, args.event_rank, 1);
  }
};

using TouchTasks = TaskList<Touch>;

}  // namespace tokenyard::megakernel
