/// A launch under the executor: its blocks and their threads, one fiber each.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/access_guard.hpp"
#include "device/host/machine.hpp"
#include "device/kernel.hpp"
#include "simt/fiber.hpp"
#include "simt/memory.hpp"
#include "simt/watched_words.hpp"

namespace tokenyard::simt {

struct Block;
struct Grid;

/// The reason why a thread does not run.
enum class Blocked : uint8_t {
  no,
  meeting,    ///< lanes of its warp have not arrived
  barrier,    ///< threads of its block have not arrived
  copies,     ///< its bulk copies are in flight
  nap,        ///< wake_ns has not come
  condition,  ///< a wait_until found nothing new; runs again when something happens
  host_wait,  ///< a host program's condition is false; runs again when something happens
  stopped,    ///< its rank was stopped; never runs again
};

/// The subject of a thread's wait_until, barrier or warp word, for a deadlock report.
struct Waiting {
  host_body::CodeAddress where = nullptr;
  uint32_t phase = 0, rank = 0;
  uint64_t expected = 0, seen = 0;
  uint32_t barrier = 0, threads = 0;
  uint32_t lanes = 0;
};

inline constexpr uint32_t kNoPart = UINT32_MAX;

struct Thread {
  ThreadName name{};
  host_body::Identity identity{};
  Block* block = nullptr;  ///< null for a host program
  std::unique_ptr<Fiber> fiber;
  Blocked blocked = Blocked::no;
  Waiting waiting;
  uint64_t wake_ns = 0;
  uint64_t progress_seen = 0;  ///< memory's progress before its condition last failed
  WatchedWords watched;        ///< words that its condition has read, if memory is plain
  size_t place = 0;            ///< index in the executor's list of runnable threads
  bool exited = false;
  uint32_t part = kNoPart;         ///< see begin_part
  std::array<uint64_t, 32> met{};  ///< all lanes' values at its last warp word
};

/// A warp word at which some of its lanes have not arrived.
struct OpenMeeting {
  host_body::WarpWord word;
  uint32_t lanes;
  uint32_t arrived = 0;
  std::array<uint64_t, 32> values{};
  Thread* first = nullptr;
};

struct BarrierState {
  uint32_t threads = 0;  ///< as the first arrival passed it; 0 while no thread has arrived
  bool votes = false;    ///< block::any, not block::sync
  bool any = false;
  host_body::CodeAddress where = nullptr;  ///< of the first arrival, which may have moved on since
  std::vector<Thread*> arrived;
  std::vector<Thread*> waiting;

  void reset() {
    threads = 0;
    votes = any = false;
    where = nullptr;
    arrived.clear();
    waiting.clear();
  }
};

inline constexpr uint32_t kBarriers = 16;

struct Block {
  Grid* grid = nullptr;
  uint32_t index = 0;
  std::unique_ptr<std::byte, void (*)(void*)> shared{nullptr, nullptr};
  size_t tail_offset = 0;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<std::vector<OpenMeeting>> meetings;  ///< [warps]
  std::array<BarrierState, kBarriers> barriers;
  uint32_t exited = 0;                 ///< threads
  std::vector<uint32_t> exited_lanes;  ///< [warps] lane masks
  Thread* first_exited = nullptr;
  std::vector<uint8_t> any_result;  ///< [threads] results of block::any
};

struct Grid {
  uint32_t rank = 0, index = 0;
  const KernelEntry* kernel = nullptr;
  const AccessGuard* guard = nullptr;  ///< null: accesses are not checked
  std::vector<std::byte> params;
  std::vector<std::unique_ptr<Block>> blocks;
  uint32_t running = 0;  ///< threads that have not ended
};

/// Returns "rank 0 block 1 warp 2 lane 3".
std::string describe(const Thread& thread);

}  // namespace tokenyard::simt
