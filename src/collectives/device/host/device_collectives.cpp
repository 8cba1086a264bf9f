#include "collectives/device/host/device_collectives.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <random>

#include "collectives/device/host/host_links.hpp"
#include "collectives/device/host/protocol_choice.hpp"
#include "collectives/device/host/requests.hpp"
#include "collectives/device/kernels/direct.hpp"
#include "collectives/device/kernels/messages.hpp"
#include "collectives/device/kernels/packets.hpp"
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
static_assert(kRingsThreadsMax == kDirectThreadsMax && kRingsThreadsMax == kMessagesThreadsMax);
constexpr uint32_t kSlotBytesMax = 64 << 20, kChunkBytesMax = 1 << 20;
/// Threads of a block that move data; and on a host, where each costs a fiber.
constexpr uint32_t kMoversMax = kSlotsThreadsMax - kWarpLanes, kHostMoversMax = kWarpLanes;
static_assert(kSlotsThreadsMax == kPacketsThreadsMax);
/// Blocks of a call of slots or packets: more of them do not make it faster.
constexpr uint32_t kSlotsBlocksMax = 64, kHostBlocksMax = 2;
/// Blocks of a call of rings, unless options say otherwise; half of them send. Few bytes take the
/// time of a chunk's way, which more warps shorten.
constexpr uint32_t kRingsBlocks = 32, kRingsBlocksOfFewBytes = 64;
constexpr uint64_t kFewBytes = 8 << 20;
/// Blocks of a call from tensor to tensor, unless options say otherwise: enough for the links.
constexpr uint32_t kDirectBlocks = 24;
/// Blocks of a launch of messages, unless options say otherwise.
constexpr uint32_t kMessagesBlocks = 16;
constexpr uint32_t kRingsWarps = kRingsThreadsMax / kWarpLanes, kHostRingsWarps = 3;

/// The layout where ranks are on several hosts: call words alone. HostLinks have the rest.
WindowLayout layout_of_words(const Options& options, uint32_t ranks) {
  return {.ranks = ranks,
          .slots = 0,
          .packets = 0,
          .rings = {.chunk_bytes = options.chunk_bytes, .places = 0},
          .channel_places = 0};
}

WindowLayout layout_of(const Options& options, uint32_t ranks) {
  return {.ranks = ranks,
          .slots = options.slot_bytes / Piece8::kBytes,
          .packets = packet_bytes(options, ranks) / Piece16::kBytes,
          .rings = ring_layout(options, ranks),
          .channel_places = channel_places(options, ranks)};
}

/// Values that ranks exchange before they create an object.
struct Proposal {
  uint32_t slot_bytes, packet_bytes, chunk_bytes, ring_bytes, arena_tensors;
  uint32_t unreachable;  ///< first rank that it cannot reach, or kAllReached
  Bytes16 key;           ///< of packets; all take rank 0's
};

Bytes16 key_of(const Options& options) {
  if (options.key) return std::bit_cast<Bytes16>(*options.key);
  std::random_device random;
  return {{random(), random(), random(), random()}};
}

/// Returns the key of packets.
Bytes16 agree_on_options(World& world, const Options& options) {
  require(options.slot_bytes >= Piece8::kBytes && options.slot_bytes % Piece8::kBytes == 0 &&
              options.slot_bytes <= kSlotBytesMax,
          "slot_bytes", fmt::format("a multiple of {} up to {}", Piece8::kBytes, kSlotBytesMax),
          options.slot_bytes);
  require(options.packet_bytes % Piece16::kBytes == 0 && options.packet_bytes <= kSlotBytesMax,
          "packet_bytes", fmt::format("a multiple of {} up to {}", Piece16::kBytes, kSlotBytesMax),
          options.packet_bytes);
  if (options.key == std::array<uint32_t, 4>{})
    throw InvalidArgument("key", "another key than zero, which zeros would equal", "zero");
  require(options.chunk_bytes > 0 && options.chunk_bytes % 16 == 0 &&
              options.chunk_bytes <= kChunkBytesMax,
          "chunk_bytes", fmt::format("a multiple of 16 up to {}", kChunkBytesMax),
          options.chunk_bytes);
  require(options.sms <= kBlocksMax, "sms", fmt::format("at most {}", kBlocksMax), options.sms);
  require(world.size() <= kRanksMax, "ranks", fmt::format("at most {}", kRanksMax), world.size());
  const Proposal mine{
      .slot_bytes = options.slot_bytes,
      .packet_bytes = options.packet_bytes,
      .chunk_bytes = options.chunk_bytes,
      .ring_bytes = options.ring_bytes,
      .arena_tensors = options.arena_tensors,
      .unreachable = spans_hosts(world) ? first_out_of_reach(world) : first_unreachable(world),
      .key = key_of(options)};
  const std::vector<Proposal> proposals = gather(world, mine, "DeviceCollectives: options");
  require_reach(world, "DeviceCollectives", proposals);
  for (uint32_t rank = 1; rank < proposals.size(); ++rank) {
    const Proposal &first = proposals[0], &other = proposals[rank];
    require_equal("slot_bytes", rank, 0, first.slot_bytes, other.slot_bytes);
    require_equal("packet_bytes", rank, 0, first.packet_bytes, other.packet_bytes);
    require_equal("chunk_bytes", rank, 0, first.chunk_bytes, other.chunk_bytes);
    require_equal("ring_bytes", rank, 0, first.ring_bytes, other.ring_bytes);
    require_equal("arena_tensors", rank, 0, first.arena_tensors, other.arena_tensors);
  }
  return proposals[0].key;
}

Signature signature_of(const Request& request, const Movement& movement, Protocol protocol) {
  const bool moves = request.operation != Operation::barrier;
  return Signature::of(request.operation, movement.reduces ? request.op : ReduceOp::sum,
                       moves ? request.type() : DataType::uint8, protocol, request.root,
                       movement.bytes(), request.factor);
}

/// Cuts an array into a part per rank.
template <class View>
std::vector<View> cut(const char* counts_argument, const char* argument, const View& whole,
                      DataType type, const std::vector<uint64_t>& counts, uint32_t ranks) {
  if (counts.size() != ranks)
    throw InvalidArgument(counts_argument, fmt::format("{} numbers, one per rank", ranks),
                          fmt::format("{}", counts.size()));
  check_array(argument, whole);
  uint64_t all = 0;
  for (const uint64_t count : counts) {
    require(count <= UINT64_MAX - all, counts_argument, "a sum below 2^64", count);
    all += count;
  }
  check_parts(argument, whole, type, all);
  std::vector<View> parts;
  uint64_t before = 0;
  for (const uint64_t count : counts) {
    auto* const begin = whole.template as<std::byte>() + before * bytes_of(whole.type);
    parts.push_back(View{begin, whole.type, {count}});
    before += count;
  }
  return parts;
}

/// The same, where this rank's part has the elements of another array, `own`.
template <class View>
std::vector<View> parts_of(const char* argument, const View& whole, const char* own_argument,
                           const ConstTensorView& own, const std::vector<uint64_t>& counts,
                           const World& world) {
  const std::vector<View> parts = cut("counts", argument, whole, own.type, counts, world.size());
  check_array(own_argument, own);
  check_parts(own_argument, own, whole.type, counts[world.rank()]);
  return parts;
}

/// Returns a message whose `first` is not known yet.
Message message_of(const ConstTensorView& tensor, uint32_t peer, uint32_t tag,
                   const Options& options, bool receives) {
  return {.data = const_cast<std::byte*>(tensor.as<std::byte>()),
          .bytes = tensor.bytes(),
          .first = 0,
          .peer = peer,
          .label = tag << 8 | static_cast<uint32_t>(tensor.type),
          .chunk_bytes = ring_chunk_bytes(tensor.bytes(), options.chunk_bytes),
          .receives = receives};
}

/// Returns whether packets_kernel.hpp has steps of several pieces for this reduction.
bool is_summed_in_steps(const CallParams& params) {
  const bool adds = params.op == ReduceOp::sum || params.op == ReduceOp::average;
  const bool is_float = params.type == DataType::float16 || params.type == DataType::bfloat16 ||
                        params.type == DataType::float32 || params.type == DataType::float64;
  return adds && is_float;
}

/// The division of a message's pieces among the blocks of a call of slots or packets.
struct PieceBlocks {
  uint32_t pieces, blocks, pieces_a_block, mover_warps_max;

  /// `tasks`: of a block's threads. Not cooperative: no block waits for a block of its own rank,
  /// and blocks send first.
  LaunchShape shape(uint64_t tasks) const {
    const auto movers = static_cast<uint32_t>(
        std::clamp<uint64_t>((tasks + kWarpLanes - 1) / kWarpLanes, 1, mover_warps_max));
    return {.blocks = blocks, .warps = movers + 1, .cooperative = false, .overlap_previous = true};
  }
};

/// Bytes of the counters of all blocks and channels.
size_t channels_bytes(uint32_t ranks) {
  return size_t{kBlocksMax} * ranks * kRoles * sizeof(uint64_t);
}

}  // namespace

struct DeviceCollectives::Impl {
  Impl(World& of_caller, const Options& options);
  ~Impl();

  void open();
  void start(const Request& request, const Call& call);
  uint32_t blocks_for(const Call& call, uint32_t chosen) const;
  PieceBlocks blocks_of_pieces(uint64_t bytes, uint32_t piece_bytes, const Call& call) const;
  void launch_slots(const CallParams& params, const Call& call);
  void launch_packets(const CallParams& params, const Call& call);
  void launch_rings(const CallParams& params, const Call& call);
  void launch_large_all_reduce(CallParams params, const Call& call);
  void launch_direct(const CallParams& params, const Call& call);
  CallParams params_of(const Request& request, const Movement& movement, Protocol protocol,
                       const Call& call);
  void start_all_to_all(ConstTensorView input, TensorView result, const Splits& splits,
                        const Call& call);
  void start_messages(const std::vector<Send>& sends, const std::vector<Receive>& receives,
                      const Call& call);
  void launch_messages(const MessagesParams& params, const Call& call);
  void await_last();
  [[noreturn]] void throw_other_counts() const;
  Protocol protocol_for(const Request& request, const Movement& movement, const Call& call) const;
  bool in_arena(const void* data, uint64_t bytes) const;
  void await(Stream stream, const std::string& what);
  void check() const;
  [[noreturn]] void throw_difference() const;
  void require_one_host(const char* what) const {
    if (links)
      throw Unsupported("DeviceCollectives",
                        fmt::format("{} between hosts do not exist; Collectives has them", what));
  }
  void require_open() const {
    if (closed) throw InvalidArgument("collectives", "open ones", "closed ones");
  }

  const std::shared_ptr<World> pinned;  ///< stays when the caller's World goes on
  World& world;
  Accelerator& accelerator;
  const Bytes16 key;
  const Options options;
  const WindowLayout layout;
  ArenaBlock window;
  Windows windows{};
  std::optional<DeviceMemory> table;  ///< addresses of windows beyond those passed by value
  DeviceMemory workspace, channels;
  ErrorRecord errors;
  LastStream last, last_messages;
  std::unique_ptr<HostLinks> links;  ///< if the world spans hosts
  std::chrono::nanoseconds longest_timeout{0};
  bool closed = false;
};

DeviceCollectives::Impl::Impl(World& of_caller, const Options& options)
    : pinned(WorldAccess::pinned(of_caller)),
      world(with_filled_slots(*pinned, "DeviceCollectives")),
      accelerator(accelerator_of(world)),
      key(agree_on_options(world, options)),
      options(options),
      layout(spans_hosts(world) ? layout_of_words(options, world.size())
                                : layout_of(options, world.size())),
      window(arena_of(world).allocate(layout.bytes(), Stream{}, ArenaEnd::upper)),
      workspace(accelerator, sizeof(Workspace), DeviceMemory::Kind::device),
      channels(accelerator, channels_bytes(world.size()), DeviceMemory::Kind::device),
      errors(accelerator, abort_flag_of(world)),
      last(accelerator),
      last_messages(accelerator) {
  accelerator.prepare(slots_kernel.entry);
  accelerator.prepare(packets_kernel.entry);
  accelerator.prepare(rings_kernel.entry);
  accelerator.prepare(direct_kernel.entry);
  accelerator.prepare(messages_kernel.entry);
  open();
  if (spans_hosts(world)) links = std::make_unique<HostLinks>(world, options);
}

/// Zeroes the window's words before any peer learns its address.
void DeviceCollectives::Impl::open() {
  accelerator.fill(window.data(), 0, layout.chunks_at(), Stream{});
  Workspace begin{};
  std::fill_n(begin.epochs, kBlocksMax, uint64_t{epoch_before(world)});
  accelerator.copy(workspace.as<void>(), &begin, sizeof(begin), Stream{});
  accelerator.fill(channels.as<void>(), 0, channels_bytes(world.size()), Stream{});
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
    await_last();
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

void DeviceCollectives::Impl::await_last() {
  for (const LastStream* used : {&last, &last_messages})
    if (used->in_use()) await(used->get(), "the end of its last call");
}

void DeviceCollectives::Impl::check() const {
  if (!errors.failed()) return;
  errors.check(phase_names());
  throw_difference();
}

void DeviceCollectives::Impl::throw_difference() const {
  const WaitReport& report = errors.report();
  if (report.phase == static_cast<uint32_t>(WaitPhase::message) ||
      report.phase == static_cast<uint32_t>(WaitPhase::counts))
    throw_other_counts();
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

void DeviceCollectives::Impl::throw_other_counts() const {
  const WaitReport& report = errors.report();
  if (report.phase == static_cast<uint32_t>(WaitPhase::counts)) {
    const uint64_t sent = report.expected & ((uint64_t{1} << CountWord::kBits) - 1);
    throw InvalidArgument("received",
                          fmt::format("{} bytes from rank {}, as it sends", sent,
                                      report.expected >> CountWord::kBits),
                          fmt::format("{} bytes", report.seen), report.rank);
  }
  const auto text = [](uint64_t description) {
    const auto label = static_cast<uint32_t>(description >> 32);
    return fmt::format("{} bytes of {} with tag {}", static_cast<uint32_t>(description),
                       name_of(static_cast<DataType>(label & 255)), label >> 8);
  };
  throw InvalidArgument("message", text(report.expected), text(report.seen), report.rank);
}

CallParams DeviceCollectives::Impl::params_of(const Request& request, const Movement& movement,
                                              Protocol protocol, const Call& call) {
  if (call.sms > kBlocksMax)
    throw InvalidArgument("sms", fmt::format("at most {}", kBlocksMax),
                          fmt::format("{}", call.sms));
  const auto timeout = call.timeout.value_or(world.timeout());
  longest_timeout = std::max(longest_timeout, timeout);
  return {.rank = request.rank,
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
}

void DeviceCollectives::Impl::start(const Request& given, const Call& call) {
  require_open();
  check();
  Request request = given;
  request.rank = world.rank();
  request.ranks = world.size();
  const Movement movement = movement_of(request);
  const Protocol protocol = protocol_for(request, movement, call);
  CallParams params = params_of(request, movement, protocol, call);
  last.begin_call(call.stream);
  if (protocol == Protocol::rings) {
    if (request.operation == Operation::all_reduce && request.ranks > 2 &&
        !(links && links->adds_whole(movement.bytes())))
      return launch_large_all_reduce(params, call);
    return launch_rings(params, call);
  }
  if (protocol == Protocol::direct) return launch_direct(params, call);
  const bool in_packets = protocol == Protocol::packets;
  const uint64_t most = in_packets ? packet_bytes(options, world.size()) : options.slot_bytes;
  do {
    params.movement.end = std::min(movement.end, params.movement.begin + most);
    if (in_packets)
      launch_packets(params, call);
    else
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

PieceBlocks DeviceCollectives::Impl::blocks_of_pieces(uint64_t bytes, uint32_t piece_bytes,
                                                      const Call& call) const {
  const bool on_host = accelerator.kind() != AcceleratorKind::gpu;
  const uint32_t movers_max = on_host ? kHostMoversMax : kMoversMax;
  const uint32_t blocks_max = blocks_for(call, on_host ? kHostBlocksMax : kSlotsBlocksMax);
  const auto pieces = static_cast<uint32_t>((bytes + piece_bytes - 1) / piece_bytes);
  const uint32_t blocks = std::clamp((pieces + movers_max - 1) / movers_max, 1u, blocks_max);
  return {.pieces = pieces,
          .blocks = blocks,
          .pieces_a_block = std::max((pieces + blocks - 1) / blocks, 1u),
          .mover_warps_max = movers_max / kWarpLanes};
}

void DeviceCollectives::Impl::launch_slots(const CallParams& params, const Call& call) {
  const PieceBlocks by = blocks_of_pieces(params.movement.bytes(), Piece8::kBytes, call);
  const uint64_t pairs = uint64_t{by.pieces_a_block} * params.ranks;
  launch(accelerator, slots_kernel, by.shape(pairs), call.stream,
         SlotsParams{params, by.pieces, by.pieces_a_block});
}

void DeviceCollectives::Impl::launch_packets(const CallParams& params, const Call& call) {
  const PieceBlocks by = blocks_of_pieces(params.movement.bytes(), Piece16::kBytes, call);
  launch(accelerator, packets_kernel, by.shape(by.pieces_a_block), call.stream,
         PacketsParams{params, key, by.pieces, by.pieces_a_block,
                       !params.movement.reduces || is_summed_in_steps(params)});
}

void DeviceCollectives::Impl::launch_rings(const CallParams& params, const Call& call) {
  if (links) return links->launch(params, blocks_for(call, kChannelsMax), call.stream);
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
  if (call.protocol == Protocol::messages)
    throw InvalidArgument("protocol", "one that a caller may choose", "messages");
  if (links && !chosen) throw InvalidArgument("protocol", "automatic between hosts", "another");
  if (links) return Protocol::rings;
  const Protocol protocol =
      chosen ? chosen_protocol(movement, options, request.ranks) : call.protocol;
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

/// Sends each other rank its part of the input, and awaits its part of the result.
void DeviceCollectives::Impl::start_all_to_all(ConstTensorView input, TensorView result,
                                               const Splits& splits, const Call& call) {
  require_one_host("splits of all_to_all");
  require_open();
  check();
  const std::vector<ConstTensorView> sent =
      cut("sent", "input", input, result.type, splits.sent, world.size());
  const std::vector<TensorView> received =
      cut("received", "result", result, input.type, splits.received, world.size());
  const uint32_t rank = world.rank(), ranks = world.size();
  if (input.data == result.data && input.elements() > 0)
    throw InvalidArgument("result", "another array than the input", "the same");
  if (splits.sent[rank] != splits.received[rank])
    throw InvalidArgument("received",
                          fmt::format("{} elements of this rank's own", splits.sent[rank]),
                          fmt::format("{}", splits.received[rank]));
  require(2 * (ranks - 1) <= kMessagesMax, "ranks", fmt::format("at most {}", kMessagesMax / 2 + 1),
          ranks);
  const Request request{.operation = Operation::all_to_all,
                        .input = input,
                        .result = result,
                        .rank = rank,
                        .ranks = ranks};
  MessagesParams params{.call = params_of(request, {}, Protocol::messages, call),
                        .collective = true,
                        .channels = channels.as<uint64_t>(),
                        .own_bytes = sent[rank].bytes(),
                        .own_input = sent[rank].as<std::byte>(),
                        .own_result = received[rank].as<std::byte>(),
                        .count = 0,
                        .messages = {}};
  for (uint32_t turn = 1; turn < ranks; ++turn) {
    const uint32_t peer = (rank + turn) % ranks;  // Every rank begins with another one.
    params.messages[params.count++] = message_of(sent[peer], peer, 0, options, false);
    params.messages[params.count++] = message_of(received[peer], peer, 0, options, true);
  }
  last.begin_call(call.stream);
  launch_messages(params, call);
}

void DeviceCollectives::Impl::start_messages(const std::vector<Send>& sends,
                                             const std::vector<Receive>& receives,
                                             const Call& call) {
  require_one_host("messages");
  require_open();
  check();
  if (accelerator.capacity().one_grid)
    throw Unsupported("messages", "ranks that share a GPU launch their kernels together");
  require(sends.size() + receives.size() <= kMessagesMax, "messages",
          fmt::format("at most {}", kMessagesMax), sends.size() + receives.size());
  Request request;
  request.rank = world.rank();
  request.ranks = world.size();
  MessagesParams params{.call = params_of(request, {}, Protocol::messages, call),
                        .collective = false,
                        .channels = channels.as<uint64_t>(),
                        .own_bytes = 0,
                        .own_input = nullptr,
                        .own_result = nullptr,
                        .count = 0,
                        .messages = {}};
  std::vector<uint64_t> chunks[kRoles] = {std::vector<uint64_t>(world.size()),
                                          std::vector<uint64_t>(world.size())};
  const auto add = [&](const char* argument, const ConstTensorView& tensor,
                       const char* peer_argument, uint32_t peer, uint32_t tag, bool receiving) {
    check_array(argument, tensor);
    require(peer < world.size() && peer != world.rank(), peer_argument,
            fmt::format("another rank below {}", world.size()), peer);
    require(tag < kTags, "tag", fmt::format("less than {}", kTags), tag);
    Message message = message_of(tensor, peer, tag, options, receiving);
    uint64_t& before = chunks[receiving ? 1 : 0][peer];
    message.first = before;
    before += message.chunks(false);
    params.messages[params.count++] = message;
  };
  for (const Send& send : sends) add("tensor", send.tensor, "to", send.to, send.tag, false);
  for (const Receive& receive : receives)
    add("tensor", receive.tensor, "from", receive.from, receive.tag, true);
  if (params.count == 0) return;
  last_messages.begin_call(call.stream);
  launch_messages(params, call);
}

void DeviceCollectives::Impl::launch_messages(const MessagesParams& params, const Call& call) {
  const Capacity capacity = accelerator.capacity();
  const bool on_host = accelerator.kind() != AcceleratorKind::gpu;
  const uint32_t warps = on_host ? kHostRingsWarps : kRingsWarps;
  uint32_t blocks = blocks_for(call, on_host ? kHostBlocksMax : kMessagesBlocks);
  if (!capacity.one_grid) {  // Whose ranks launch grids of one shape.
    uint64_t chunks = params.own_bytes / options.chunk_bytes;
    for (uint32_t i = 0; i < params.count; ++i)
      chunks += params.messages[i].chunks(params.collective);
    blocks = static_cast<uint32_t>(std::clamp<uint64_t>(chunks / (warps - 1) + 1, 1, blocks));
  }
  const uint32_t least =
      (params.count + kMessagesOfWarp * (warps - 1) - 1) / (kMessagesOfWarp * (warps - 1));
  launch(accelerator, messages_kernel,
         {.blocks = std::max(blocks, least), .warps = warps, .overlap_previous = true}, call.stream,
         params);
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
void DeviceCollectives::all_gather(ConstTensorView input, TensorView result,
                                   const std::vector<uint64_t>& counts, const Call& call) {
  const std::vector<TensorView> parts =
      parts_of("result", result, "input", input, counts, impl_->world);
  for (uint32_t root = 0; root < parts.size(); ++root)
    impl_->start({.operation = Operation::broadcast,
                  .input = root == impl_->world.rank() ? input : ConstTensorView{},
                  .result = parts[root],
                  .root = root},
                 call);
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
void DeviceCollectives::reduce_scatter(ConstTensorView input, TensorView result,
                                       const Reduction& by, const std::vector<uint64_t>& counts,
                                       const Call& call) {
  const std::vector<ConstTensorView> parts =
      parts_of("input", input, "result", result, counts, impl_->world);
  for (uint32_t root = 0; root < parts.size(); ++root)
    impl_->start({.operation = Operation::reduce,
                  .input = parts[root],
                  .result = root == impl_->world.rank() ? result : TensorView{},
                  .op = by.op,
                  .factor = by.factor,
                  .root = root},
                 call);
}
void DeviceCollectives::all_to_all(ConstTensorView input, TensorView result, const Call& call) {
  impl_->start({.operation = Operation::all_to_all, .input = input, .result = result}, call);
}

void DeviceCollectives::all_to_all(ConstTensorView input, TensorView result, const Splits& splits,
                                   const Call& call) {
  impl_->start_all_to_all(input, result, splits, call);
}
void DeviceCollectives::exchange(const std::vector<Send>& sends,
                                 const std::vector<Receive>& receives, const Call& call) {
  impl_->start_messages(sends, receives, call);
}

void DeviceCollectives::check() {
  impl_->require_open();
  impl_->check();
}
void DeviceCollectives::wait(Stream stream) {
  impl_->require_open();
  impl_->await(stream, "the end of a stream's work");
  impl_->last.forget(stream);
  impl_->last_messages.forget(stream);
  impl_->check();
}

/// The barrier follows every rank's last kernel, so no store of this object is in flight after it.
void DeviceCollectives::close() {
  if (impl_->closed) return;
  impl_->await_last();
  impl_->check();
  if (impl_->links) impl_->links->drain();
  impl_->world.barrier("DeviceCollectives: close");
  if (impl_->links) impl_->links->give_back();
  impl_->links.reset();
  impl_->closed = true;
  impl_->window = ArenaBlock();
}

uint64_t DeviceCollectives::arena_bytes(const Options& options, uint32_t ranks) {
  return layout_of(options, ranks).bytes();
}

}  // namespace tokenyard::device_collectives
