/// A launch under the executor: its blocks, and the fibers that are their threads.
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

/// Why a thread does not run.
enum class Blocked : uint8_t {
  no,
  meeting,    ///< lanes of its warp have yet to come
  barrier,    ///< threads of its block have yet to come
  copies,     ///< its bulk copies are under way
  nap,        ///< until wake_ns
  condition,  ///< a wait_until found nothing new: until something happens
  host_wait,  ///< a host program's condition: until something happens
  stopped,    ///< its rank was stopped: never
};

/// What a wait_until, barrier or meeting is for: the raw material of a deadlock report.
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
  uint64_t progress_seen = 0;  ///< what a failed condition had already taken into account
  WatchedWords watched;        ///< where memory is plain: what it has looked at
  size_t place = 0;            ///< index in the executor's list of runnable threads
  bool exited = false;
  uint32_t part = kNoPart;         ///< of the kernel's work
  std::array<uint64_t, 32> met{};  ///< what the lanes brought to its last meeting
};

/// Lanes of a warp that are on their way to one another.
struct OpenMeeting {
  host_body::WarpWord word;
  uint32_t lanes;
  uint32_t arrived = 0;
  std::array<uint64_t, 32> values{};
  Thread* first = nullptr;
};

struct BarrierState {
  uint32_t threads = 0;  ///< as the first to come said; 0 when nobody is there
  bool votes = false;    ///< block::any, not block::sync
  bool any = false;
  host_body::CodeAddress where = nullptr;  ///< the first to come; it may have gone on since
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
  uint32_t exited = 0;
  std::vector<uint32_t> exited_lanes;  ///< [warps] as bits
  Thread* first_exited = nullptr;
  std::vector<uint8_t> any_result;  ///< [threads] of block::any
};

struct Grid {
  uint32_t rank = 0, index = 0;
  const KernelEntry* kernel = nullptr;
  const AccessGuard* guard = nullptr;  ///< null: nobody judges accesses
  std::vector<std::byte> params;
  std::vector<std::unique_ptr<Block>> blocks;
  uint32_t running = 0;  ///< threads that have not ended
};

/// "rank 0 block 1 warp 2 lane 3".
std::string describe(const Thread& thread);

}  // namespace tokenyard::simt
