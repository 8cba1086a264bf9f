/// How a call begins and ends on the device.
///
///     begin_deadline    every block: waits for the kernel before, then begins the call's time
///     begin_call        every block: reads the epoch
///     publish_call      the last warp of block 0: stores the call word on every rank
///     await_calls       the same warp, and that of each block of packets: waits for every rank's
///                       word and compares them
///     pass_epoch        every block: advances its epochs
///
/// A kernel ends only after it has every rank's call word. The word of call e is a release after
/// the end of its rank's call e - 1. So a rank that begins call e + 1 knows that every rank has
/// ended call e - 1, and may write what that call used: everything is double, by the epoch's
/// parity, and no barrier is needed.
///
/// All ranks compare the words of all with rank 0's, so all report the same difference. Data
/// carry the digest of their call, or wait for the comparison (packets.hpp), so data of another
/// call are never accepted.
#pragma once

#include "collectives/device/kernels/device_call.hpp"
#include "collectives/device/kernels/wait_phase.hpp"
#include "device/device.hpp"

namespace tokenyard::device_collectives {

/// Barriers that all kernels of collectives use.
enum class CallBarrier : uint32_t {
  begun = 14,  ///< the warps that move data know the call
  known = 15,  ///< the last warp knows it, too
};

/// Called first, by all threads. The kernel before may take long: its time is none of this call's.
TOKENYARD_DEVICE BlockDeadline begin_deadline(const CallParams& params) {
  grid::let_next_start();
  grid::wait_for_previous();
  return BlockDeadline(params.wait_context, params.empty);
}

/// Called by all threads of a block, whose last warp announces the call while the others move data.
/// Returns false if an earlier call has failed.
///
/// The fence of block 0's last warp releases what this rank has done so far, for publish_call: it
/// has read its earlier calls' data, and what the caller's stream has written may be read. The
/// other warps do not wait for it, and it runs while the epoch is loaded.
TOKENYARD_DEVICE bool begin_call(const CallParams& params, CallShared& shared,
                                 const BlockDeadline& deadline) {
  if (warp::index() + 1 == warp::count()) {
    if (block::index() == 0) fence<Scope::sys>();
    NamedBarrier(CallBarrier::known).sync(block::threads());
    return !shared.failed;
  }
  if (thread::index() == 0) {
    shared.epoch = params.workspace->epochs[block::index()] + 1;
    shared.failed = deadline.failed();
  }
  NamedBarrier(CallBarrier::begun).sync(block::threads() - kWarpLanes);
  NamedBarrier(CallBarrier::known).arrive(block::threads());
  return !shared.failed;
}

/// Returns the half of the window that this call uses.
TOKENYARD_DEVICE uint32_t parity_of(uint64_t epoch) {
  // Mutant: all calls use one half.
  return mutated() ? 0 : static_cast<uint32_t>(epoch & 1);
}

/// Returns the digest of this call's data.
TOKENYARD_DEVICE uint32_t digest_of(const CallParams& params, uint64_t epoch) {
  // Mutant: data of all calls look alike.
  return mutated() ? 1 : params.signature.digest(epoch);
}

/// Called by one warp of a block, after begin_call.
TOKENYARD_DEVICE void pass_epoch(const CallParams& params, uint64_t epoch) {
  for (uint32_t i = block::index() + warp::lane() * grid::blocks(); i < kBlocksMax;
       i += kWarpLanes * grid::blocks())
    params.workspace->epochs[i] = epoch;
  if (block::index() == 0 && warp::lane() < kRoles)
    params.workspace->claims[(epoch + 1) & 1][warp::lane()] = 0;
}

/// Called by the last warp of block 0, whose fence in begin_call makes this a release.
TOKENYARD_DEVICE void publish_call(const CallParams& params, uint64_t epoch) {
  const CallWord word = CallWord::of(epoch, params.signature);
  for (uint32_t rank = warp::lane(); rank < params.ranks; rank += kWarpLanes)
    store<Order::relaxed, Scope::sys>(
        params.windows.call(rank, static_cast<uint32_t>(epoch & 1), params.rank), word.bits);
}

/// Fails the call because `rank` makes another one than rank 0. Called by one thread.
TOKENYARD_COLD void refuse(const BlockDeadline& deadline, uint32_t rank, const Signature& expected,
                           const Signature& seen) {
  const bool other = expected.what != seen.what;
  deadline.fail(Failure::refused,
                {.phase = static_cast<uint32_t>(other ? WaitPhase::what : WaitPhase::size),
                 .rank = rank,
                 .expected = other ? expected.what : expected.size,
                 .seen = other ? seen.what : seen.size});
}

/// Waits for the call word of a rank; returns a word of no call if the wait failed.
TOKENYARD_DEVICE CallWord await_call(const CallParams& params, uint64_t epoch, uint32_t rank,
                                     const BlockDeadline& deadline) {
  Awaited what{.phase = static_cast<uint32_t>(WaitPhase::call),
               .rank = rank,
               .expected = static_cast<uint32_t>(epoch)};
  const Peer<Bytes16> at = params.windows.call(params.rank, static_cast<uint32_t>(epoch & 1), rank);
  CallWord word{};
  const bool came = wait_until(deadline, what, [&] {
    word = {load<Order::relaxed, Scope::sys>(at)};
    what.seen = word.bits.word[0];
    return word.is_of(epoch);
  });
  return came ? word : CallWord{};
}

/// Waits for the call words of all ranks and compares them with rank 0's. Returns whether all make
/// this call. Called by one warp.
TOKENYARD_DEVICE bool await_calls(const CallParams& params, uint64_t epoch,
                                  const BlockDeadline& deadline) {
  Signature on_rank_0{};
  for (uint32_t first = 0; first < params.ranks; first += kWarpLanes) {
    const uint32_t rank = first + warp::lane();
    CallWord word{};
    if (rank < params.ranks) word = await_call(params, epoch, rank, deadline);
    const bool came = rank >= params.ranks || word.is_of(epoch);
    if (!warp::all(came)) return false;
    const Signature theirs = word.signature();
    if (first == 0) on_rank_0 = {warp::shuffle(theirs.what, 0), warp::shuffle(theirs.size, 0)};
    const uint32_t others = warp::ballot(rank < params.ranks && !(theirs == on_rank_0));
    if (others == 0) continue;
    if (warp::lane() == first_bit(others)) refuse(deadline, rank, on_rank_0, theirs);
    return false;
  }
  // Acquires what the words release: the ends of all ranks' earlier calls, and for a barrier all
  // that ranks have done before it.
  fence_acquire<Scope::sys>();
  return true;
}

}  // namespace tokenyard::device_collectives
