#include "collectives/device/host/device_collectives.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "collectives/device/host/protocol_choice.hpp"
#include "collectives/device/host/requests.hpp"
#include "collectives/device/kernels/direct.hpp"
#include "collectives/device/kernels/rings.hpp"
#include "collectives/device/kernels/slots.hpp"
#include "collectives/device/kernels/wait_phase.hpp"
#include "device/await_stream.hpp"
#include "device/device_memory.hpp"
#include "device/identity.hpp"
#include "device/last_stream.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/agreement.hpp"
#include "fabric/arena.hpp"
#include "fabric/exchange_window_addresses.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::device_collectives {

namespace {

constexpr uint32_t kRanksMax = 1u << Signature::kRootBits;
static_assert(kRingsThreadsMax == kDirectThreadsMax);
constexpr uint32_t kSlotBytesMax = 64 << 20, kChunkBytesMax = 1 << 20;
/// Threads of a block that move data; and on a host, where each costs a fiber.
constexpr uint32_t kMoversMax = kSlotsThreadsMax - kWarpLanes, kHostMoversMax = kWarpLanes;
/// Blocks of a call of slots: more of them do not make it faster.
constexpr uint32_t kSlotsBlocksMax = 64, kHostBlocksMax = 2;
/// Blocks of a call of rings, unless options say otherwise; half of them send. Few bytes take the
/// time of a chunk's way, which more warps shorten.
constexpr uint32_t kRingsBlocks = 32, kRingsBlocksOfFewBytes = 64;
constexpr uint64_t kFewBytes = 8 << 20;
/// Blocks of a call from tensor to tensor, unless options say otherwise: enough for the links.
constexpr uint32_t kDirectBlocks = 24;
constexpr uint32_t kRingsWarps = kRingsThreadsMax / kWarpLanes, kHostRingsWarps = 3;

WindowLayout layout_of(const Options& options, uint32_t ranks) {
  return {.ranks = ranks,
          .slots = options.slot_bytes / Piece8::kBytes,
          .rings = ring_layout(options, ranks)};
}

/// Values that ranks exchange before they create an object.
struct Proposal {
  uint32_t slot_bytes, chunk_bytes, ring_bytes, arena_tensors;
  uint32_t unreachable;  ///< first rank that it cannot reach, or kAllReached
};

void agree_on_options(World& world, const Options& options) {
  require(options.slot_bytes >= Piece8::kBytes && options.slot_bytes % Piece8::kBytes == 0 &&
              options.slot_bytes <= kSlotBytesMax,
          "slot_bytes", fmt::format("a multiple of {} up to {}", Piece8::kBytes, kSlotBytesMax),
          options.slot_bytes);
  require(options.chunk_bytes > 0 && options.chunk_bytes % 16 == 0 &&
              options.chunk_bytes <= kChunkBytesMax,
          "chunk_bytes", fmt::format("a multiple of 16 up to {}", kChunkBytesMax),
          options.chunk_bytes);
  require(options.sms <= kBlocksMax, "sms", fmt::format("at most {}", kBlocksMax), options.sms);
  require(world.size() <= kRanksMax, "ranks", fmt::format("at most {}", kRanksMax), world.size());
  const Proposal mine{.slot_bytes = options.slot_bytes,
                      .chunk_bytes = options.chunk_bytes,
                      .ring_bytes = options.ring_bytes,
                      .arena_tensors = options.arena_tensors,
                      .unreachable = first_unreachable(world)};
  const std::vector<Proposal> proposals = gather(world, mine, "DeviceCollectives: options");
  require_reach(world, "DeviceCollectives", proposals);
  for (uint32_t rank = 1; rank < proposals.size(); ++rank) {
    const Proposal &first = proposals[0], &other = proposals[rank];
    require_equal("slot_bytes", rank, 0, first.slot_bytes, other.slot_bytes);
    require_equal("chunk_bytes", rank, 0, first.chunk_bytes, other.chunk_bytes);
    require_equal("ring_bytes", rank, 0, first.ring_bytes, other.ring_bytes);
    require_equal("arena_tensors", rank, 0, first.arena_tensors, other.arena_tensors);
  }
}

Signature signature_of(const Request& request, const Movement& movement, Protocol protocol) {
  const bool moves = request.operation != Operation::barrier;
  return Signature::of(request.operation, movement.reduces ? request.op : ReduceOp::sum,
                       moves ? request.type() : DataType::uint8, protocol, request.root,
                       movement.bytes(), request.factor);
}

}  // namespace

struct DeviceCollectives::Impl {
  Impl(World& of_caller, const Options& options);
  ~Impl();

  void open();
  void start(const Request& request, const Call& call);
  uint32_t blocks_for(const Call& call, uint32_t chosen) const;
  void launch_slots(const CallParams& params, const Call& call);
  void launch_rings(const CallParams& params, const Call& call);
  void launch_large_all_reduce(CallParams params, const Call& call);
  void launch_direct(const CallParams& params, const Call& call);
  Protocol protocol_for(const Request& request, const Movement& movement, const Call& call) const;
  bool in_arena(const void* data, uint64_t bytes) const;
  void await(Stream stream, const std::string& what);
  void check() const;
  [[noreturn]] void throw_difference() const;
  void require_open() const {
    if (closed) throw InvalidArgument("collectives", "open ones", "closed ones");
  }

  const std::shared_ptr<World> pinned;  ///< stays when the caller's World goes on
  World& world;
  Accelerator& accelerator;
  const Options options;
  const WindowLayout layout;
  ArenaBlock window;
  Windows windows{};
  std::optional<DeviceMemory> table;  ///< addresses of windows beyond those passed by value
  DeviceMemory workspace;
  ErrorRecord errors;
  LastStream last;
  std::chrono::nanoseconds longest_timeout{0};
  bool closed = false;
};

DeviceCollectives::Impl::Impl(World& of_caller, const Options& options)
    : pinned(WorldAccess::pinned(of_caller)),
      world(with_filled_slots(*pinned, "DeviceCollectives")),
      accelerator(accelerator_of(world)),
      options((agree_on_options(world, options), options)),
      layout(layout_of(options, world.size())),
      window(arena_of(world).allocate(layout.bytes(), Stream{}, ArenaEnd::upper)),
      workspace(accelerator, sizeof(Workspace), DeviceMemory::Kind::device),
      errors(accelerator, abort_flag_of(world)),
      last(accelerator) {
  accelerator.prepare(slots_kernel.entry);
  accelerator.prepare(rings_kernel.entry);
  accelerator.prepare(direct_kernel.entry);
  open();
}

/// Zeroes the window's words before any peer learns its address.
void DeviceCollectives::Impl::open() {
  accelerator.fill(window.data(), 0, layout.chunks_at(), Stream{});
  Workspace begin{};
  std::fill_n(begin.epochs, kBlocksMax, uint64_t{epoch_before(world)});
  accelerator.copy(workspace.as<void>(), &begin, sizeof(begin), Stream{});
  await(Stream{}, "an empty window");
  windows.layout = layout;
  exchange_window_addresses(
      world, window, "DeviceCollectives: windows", [&](std::span<std::byte* const> addresses) {
        windows.peers = Peers::of(addresses, world.rank(), nullptr);
        if (addresses.size() <= Peers::kAtHand) return;
        table.emplace(accelerator, addresses.size_bytes(), DeviceMemory::Kind::device);
        accelerator.copy(table->as<void>(), addresses.data(), addresses.size_bytes(), Stream{});
        await(Stream{}, "the table of windows");
        windows.peers.table = table->as<std::byte*>();
      });
}

DeviceCollectives::Impl::~Impl() {
  if (closed) return;
  try {
    // A running kernel may still use the memory freed below.
    if (last.in_use()) await(last.get(), "the end of its last call");
  } catch (const std::exception&) {
    // A destructor cannot report it; the window is kept in any case.
  }
  window.quarantine();
}

/// A call ends at its deadline; the caller's other work gets as much time again.
void DeviceCollectives::Impl::await(Stream stream, const std::string& what) {
  await_stream(accelerator, world.rank(), stream, 2 * std::max(longest_timeout, world.timeout()),
               "DeviceCollectives: " + what);
}

void DeviceCollectives::Impl::check() const {
  if (!errors.failed()) return;
  errors.check(phase_names());
  throw_difference();
}

void DeviceCollectives::Impl::throw_difference() const {
  const WaitReport& report = errors.report();
  if (report.phase == static_cast<uint32_t>(WaitPhase::size)) {
    const uint64_t expected = Signature::bytes_of(report.expected);
    const uint64_t seen = Signature::bytes_of(report.seen);
    if (expected == seen) throw InvalidArgument("factor", "rank 0's", "another", report.rank);
    throw InvalidArgument("size", fmt::format("{} bytes as on rank 0", expected),
                          fmt::format("{} bytes", seen), report.rank);
  }
  const auto text = [](uint64_t what) {
    return describe({.what = static_cast<uint32_t>(what), .size = 0});
  };
  throw InvalidArgument("call", fmt::format("{} as on rank 0", text(report.expected)),
                        text(report.seen), report.rank);
}

void DeviceCollectives::Impl::start(const Request& given, const Call& call) {
  require_open();
  check();
  Request request = given;
  request.rank = world.rank();
  request.ranks = world.size();
  const Movement movement = movement_of(request);
  if (call.sms > kBlocksMax)
    throw InvalidArgument("sms", fmt::format("at most {}", kBlocksMax),
                          fmt::format("{}", call.sms));
  const auto timeout = call.timeout.value_or(world.timeout());
  longest_timeout = std::max(longest_timeout, timeout);
  const Protocol protocol = protocol_for(request, movement, call);
  CallParams params{.rank = request.rank,
                    .ranks = request.ranks,
                    .signature = signature_of(request, movement, protocol),
                    .movement = movement,
                    .type = request.type(),
                    .op = request.op,
                    .factor = request.factor,
                    .input = static_cast<const std::byte*>(request.input.data),
                    .result = static_cast<std::byte*>(request.result.data),
                    .windows = windows,
                    .workspace = workspace.as<Workspace>(),
                    .wait_context = errors.wait_context(timeout)};
  last.begin_call(call.stream);
  if (protocol == Protocol::rings) {
    if (request.operation == Operation::all_reduce && request.ranks > 2)
      return launch_large_all_reduce(params, call);
    return launch_rings(params, call);
  }
  if (protocol == Protocol::direct) return launch_direct(params, call);
  do {
    params.movement.end = std::min(movement.end, params.movement.begin + options.slot_bytes);
    launch_slots(params, call);
    params.movement.begin = params.movement.end;
  } while (params.movement.begin < movement.end);
}

/// Returns the blocks of a call: those asked for, or `chosen`, as far as the device has them.
uint32_t DeviceCollectives::Impl::blocks_for(const Call& call, uint32_t chosen) const {
  const uint32_t asked = call.sms != 0 ? call.sms : options.sms;
  return std::clamp(asked != 0 ? asked : chosen, 1u,
                    std::min(kBlocksMax, accelerator.capacity().multiprocessors));
}

void DeviceCollectives::Impl::launch_slots(const CallParams& params, const Call& call) {
  const bool on_host = accelerator.kind() != AcceleratorKind::gpu;
  const uint32_t movers_max = on_host ? kHostMoversMax : kMoversMax;
  const uint32_t blocks_max = blocks_for(call, on_host ? kHostBlocksMax : kSlotsBlocksMax);
  const auto pieces =
      static_cast<uint32_t>((params.movement.bytes() + Piece8::kBytes - 1) / Piece8::kBytes);
  const uint32_t blocks = std::clamp((pieces + movers_max - 1) / movers_max, 1u, blocks_max);
  const uint32_t pieces_a_block = std::max((pieces + blocks - 1) / blocks, 1u);
  const uint64_t pairs = uint64_t{pieces_a_block} * params.ranks;
  const auto movers = static_cast<uint32_t>(
      std::clamp<uint64_t>((pairs + kWarpLanes - 1) / kWarpLanes, 1, movers_max / kWarpLanes));
  // Not cooperative: no block waits for a block of its own rank, and blocks send first.
  launch(accelerator, slots_kernel,
         {.blocks = blocks, .warps = movers + 1, .cooperative = false, .overlap_previous = true},
         call.stream, SlotsParams{params, pieces, pieces_a_block});
}

void DeviceCollectives::Impl::launch_rings(const CallParams& params, const Call& call) {
  const bool on_host = accelerator.kind() != AcceleratorKind::gpu;
  const uint32_t chosen = on_host                                ? kHostBlocksMax
                          : params.movement.bytes() <= kFewBytes ? kRingsBlocksOfFewBytes
                                                                 : kRingsBlocks;
  const uint32_t blocks = std::max(blocks_for(call, chosen), 2u);
  launch(accelerator, rings_kernel,
         {.blocks = blocks,
          .warps = on_host ? kHostRingsWarps : kRingsWarps,
          .overlap_previous = true},
         call.stream,
         RingsParams{params, ring_chunk_bytes(params.movement.bytes(), layout.rings.chunk_bytes),
                     blocks / 2});
}

bool DeviceCollectives::Impl::in_arena(const void* data, uint64_t bytes) const {
  const Arena& arena = arena_of(world);
  const auto begin = reinterpret_cast<uintptr_t>(arena.base());
  const auto at = reinterpret_cast<uintptr_t>(data);
  return at >= begin && at + bytes <= begin + arena.capacity();
}

/// Returns the protocol of a call. All ranks choose alike, else all raise the difference.
Protocol DeviceCollectives::Impl::protocol_for(const Request& request, const Movement& movement,
                                               const Call& call) const {
  const bool chosen = call.protocol == Protocol::automatic;
  const Protocol protocol = chosen ? chosen_protocol(movement, options) : call.protocol;
  if (protocol != Protocol::direct) return protocol;
  if (request.operation == Operation::barrier) return Protocol::slots;
  const bool input = !request.input.given() || in_arena(request.input.data, request.input.bytes());
  const bool result =
      !request.result.given() || in_arena(request.result.data, request.result.bytes());
  const bool in_place = request.operation == Operation::all_to_all &&
                        request.input.data == request.result.data && request.input.elements() > 0;
  if (input && result && !in_place) return protocol;
  if (chosen) return Protocol::rings;
  if (in_place)
    throw InvalidArgument("result", "another array than the input for this protocol", "the same");
  throw InvalidArgument(input ? "result" : "input", "memory of the arena for this protocol",
                        "other memory");
}

void DeviceCollectives::Impl::launch_direct(const CallParams& params, const Call& call) {
  const bool on_host = accelerator.kind() != AcceleratorKind::gpu;
  const uint32_t blocks = blocks_for(call, on_host ? kHostBlocksMax : kDirectBlocks);
  const uint32_t warps = on_host ? kHostRingsWarps : kRingsWarps;
  const Movement& movement = params.movement;
  const bool divided = movement.reduces && !movement.input_has_parts;
  const uint64_t share = movement.bytes() / (divided ? params.ranks : 1);
  launch(accelerator, direct_kernel, {.blocks = blocks, .warps = warps, .overlap_previous = true},
         call.stream,
         DirectParams{params, direct_chunk_bytes(share, movement.reduces, blocks * (warps - 1),
                                                 options.chunk_bytes)});
}

/// Each rank folds one part, then all gather the parts: fewer bytes than if each rank sent all of
/// its input to all others, unless there are only two.
void DeviceCollectives::Impl::launch_large_all_reduce(CallParams params, const Call& call) {
  constexpr uint64_t kPartUnit = 16;  // A multiple of every element's size; keeps parts aligned.
  const uint64_t whole = params.movement.whole;
  const uint64_t part =
      (whole + params.ranks * kPartUnit - 1) / (params.ranks * kPartUnit) * kPartUnit;
  std::byte* const result = params.result;
  std::byte* const mine = result + std::min(params.rank * part, whole);
  params.movement = {
      .reduces = true, .input_has_parts = true, .part = part, .whole = whole, .end = part};
  params.result = mine;
  launch_rings(params, call);
  params.movement = {.result_has_parts = true, .part = part, .whole = whole, .end = part};
  params.input = mine;
  params.result = result;
  launch_rings(params, call);
}

DeviceCollectives::DeviceCollectives(World& world, const Options& options)
    : impl_(std::make_unique<Impl>(world, options)) {}
DeviceCollectives::~DeviceCollectives() = default;

void DeviceCollectives::barrier(const Call& call) {
  impl_->start({}, call);
}
void DeviceCollectives::all_reduce(ConstTensorView input, TensorView result, const Reduction& by,
                                   const Call& call) {
  impl_->start({.operation = Operation::all_reduce,
                .input = input,
                .result = result,
                .op = by.op,
                .factor = by.factor},
               call);
}
void DeviceCollectives::reduce(ConstTensorView input, TensorView result, const Reduction& by,
                               uint32_t root, const Call& call) {
  impl_->start({.operation = Operation::reduce,
                .input = input,
                .result = result,
                .op = by.op,
                .factor = by.factor,
                .root = root},
               call);
}
void DeviceCollectives::broadcast(TensorView tensor, uint32_t root, const Call& call) {
  impl_->start({.operation = Operation::broadcast, .input = tensor, .result = tensor, .root = root},
               call);
}
void DeviceCollectives::all_gather(ConstTensorView input, TensorView result, const Call& call) {
  impl_->start({.operation = Operation::all_gather, .input = input, .result = result}, call);
}
void DeviceCollectives::gather(ConstTensorView input, TensorView result, uint32_t root,
                               const Call& call) {
  impl_->start({.operation = Operation::gather, .input = input, .result = result, .root = root},
               call);
}
void DeviceCollectives::scatter(ConstTensorView input, TensorView result, uint32_t root,
                                const Call& call) {
  impl_->start({.operation = Operation::scatter, .input = input, .result = result, .root = root},
               call);
}
void DeviceCollectives::reduce_scatter(ConstTensorView input, TensorView result,
                                       const Reduction& by, const Call& call) {
  impl_->start({.operation = Operation::reduce_scatter,
                .input = input,
                .result = result,
                .op = by.op,
                .factor = by.factor},
               call);
}
void DeviceCollectives::all_to_all(ConstTensorView input, TensorView result, const Call& call) {
  impl_->start({.operation = Operation::all_to_all, .input = input, .result = result}, call);
}

void DeviceCollectives::check() {
  impl_->require_open();
  impl_->check();
}
void DeviceCollectives::wait(Stream stream) {
  impl_->require_open();
  impl_->await(stream, "the end of a stream's work");
  impl_->last.forget(stream);
  impl_->check();
}

/// The barrier follows every rank's last kernel, so no store of this object is in flight after it.
void DeviceCollectives::close() {
  if (impl_->closed) return;
  if (impl_->last.in_use()) impl_->await(impl_->last.get(), "the end of its last call");
  impl_->check();
  impl_->world.barrier("DeviceCollectives: close");
  impl_->closed = true;
  impl_->window = ArenaBlock();
}

uint64_t DeviceCollectives::arena_bytes(const Options& options, uint32_t ranks) {
  return layout_of(options, ranks).bytes();
}

}  // namespace tokenyard::device_collectives
