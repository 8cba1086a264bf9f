#include "collectives/device/host/collective_calls.hpp"

#include <algorithm>
#include <optional>

#include "collectives/device/host/launch_shapes.hpp"
#include "collectives/device/host/protocol_choice.hpp"
#include "collectives/device/kernels/direct.hpp"
#include "collectives/device/kernels/packets.hpp"
#include "collectives/device/kernels/rings.hpp"
#include "collectives/device/kernels/slots.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::device_collectives {

namespace {

/// Threads of a block that move data; and on a host, where each costs a fiber.
constexpr uint32_t kMoversMax = kSlotsThreadsMax - kWarpLanes, kHostMoversMax = kWarpLanes;
static_assert(kSlotsThreadsMax == kPacketsThreadsMax);
/// Blocks of a call of slots or packets: more of them do not make it faster.
constexpr uint32_t kSlotsBlocksMax = 64;
/// Blocks of a call of rings, unless options say otherwise; half of them send. Few bytes take the
/// time of a chunk's way, which more warps shorten.
constexpr uint32_t kRingsBlocks = 32, kRingsBlocksOfFewBytes = 64;
constexpr uint64_t kFewBytes = 8 << 20;
/// Blocks of a call from tensor to tensor, unless options say otherwise: enough for the links.
constexpr uint32_t kDirectBlocks = 24;

/// Returns whether packets_kernel.hpp has steps of several pieces for this reduction.
bool is_summed_in_steps(const CallParams& params) {
  const bool adds = params.op == ReduceOp::sum || params.op == ReduceOp::average;
  const bool is_float = params.type == DataType::float16 || params.type == DataType::bfloat16 ||
                        params.type == DataType::float32 || params.type == DataType::float64;
  return adds && is_float;
}

}  // namespace

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

void CollectiveCalls::start(const Request& given, const Call& call) {
  Request request = given;
  request.rank = session_.world->rank();
  request.ranks = session_.world->size();
  Movement movement = movement_of(request);
  movement.root = member_at(request);
  movement.empty = session_.members.empty;
  const Protocol protocol = protocol_for(request, movement, call);
  const CallParams params = session_.params_of(request, movement, protocol, call);
  const bool keeps = session_.options.keep_inputs && overwrites_input(request);
  if (keeps) session_.require_keeps(call.stream);
  session_.last.begin_call(call.stream);
  if (movement.result_has_parts && request.result.given())
    session_.clear_empty(request.result.data, movement.part, call.stream);
  if (keeps) session_.keep(request.result, call.stream);
  launch(request, params, call);
  if (keeps) session_.restore_if_failed(request.result, call.stream);
}

uint32_t CollectiveCalls::member_at(const Request& request) const {
  const std::optional<uint32_t> root = session_.members.at(request.root);
  if (root) return *root;
  if (has_root(request.operation))
    throw OperationAborted(name_of(request.operation), session_.log.calls(),
                           membership_epoch_of(*session_.world), {request.root});
  return 0;
}

void CollectiveCalls::launch(const Request& request, CallParams params, const Call& call) {
  const Movement movement = params.movement;
  const Protocol protocol = params.signature.protocol();
  if (protocol == Protocol::rings) {
    const bool adds_whole = session_.links && session_.links->adds_whole(movement.bytes());
    if (request.operation == Operation::all_reduce && params.ranks > 2 && !adds_whole)
      return launch_large_all_reduce(params, call);
    return launch_rings(params, call);
  }
  if (protocol == Protocol::direct) return launch_direct(params, call);
  const bool in_packets = protocol == Protocol::packets;
  const uint64_t most = in_packets ? packet_bytes(session_.options, session_.members.count())
                                   : session_.options.slot_bytes;
  do {
    params.movement.end = std::min(movement.end, params.movement.begin + most);
    if (in_packets)
      launch_packets(params, call);
    else
      launch_slots(params, call);
    params.movement.begin = params.movement.end;
  } while (params.movement.begin < movement.end);
}

PieceBlocks CollectiveCalls::blocks_of_pieces(uint64_t bytes, uint32_t piece_bytes,
                                              const Call& call) const {
  const bool on_host = session_.on_host();
  const uint32_t movers_max = on_host ? kHostMoversMax : kMoversMax;
  const uint32_t blocks_max = session_.blocks_for(call, on_host ? kHostBlocksMax : kSlotsBlocksMax);
  const auto pieces = static_cast<uint32_t>((bytes + piece_bytes - 1) / piece_bytes);
  const uint32_t blocks = std::clamp((pieces + movers_max - 1) / movers_max, 1u, blocks_max);
  return {.pieces = pieces,
          .blocks = blocks,
          .pieces_a_block = std::max((pieces + blocks - 1) / blocks, 1u),
          .mover_warps_max = movers_max / kWarpLanes};
}

void CollectiveCalls::launch_slots(const CallParams& params, const Call& call) {
  const PieceBlocks by = blocks_of_pieces(params.movement.bytes(), Piece8::kBytes, call);
  const uint64_t pairs = uint64_t{by.pieces_a_block} * params.ranks;
  session_.launch_call(slots_kernel, by.shape(pairs), call.stream,
                       SlotsParams{params, by.pieces, by.pieces_a_block});
}

void CollectiveCalls::launch_packets(const CallParams& params, const Call& call) {
  const PieceBlocks by = blocks_of_pieces(params.movement.bytes(), Piece16::kBytes, call);
  session_.launch_call(packets_kernel, by.shape(by.pieces_a_block), call.stream,
                       PacketsParams{params, session_.key, by.pieces, by.pieces_a_block,
                                     !params.movement.reduces || is_summed_in_steps(params)});
}

void CollectiveCalls::launch_rings(const CallParams& params, const Call& call) {
  if (session_.links) {
    session_.links->launch(params, session_.blocks_for(call, kChannelsMax), call.stream);
    if (!session_.accelerator.captures(call.stream)) session_.log.launched();
    return;
  }
  const bool on_host = session_.on_host();
  const uint32_t chosen = on_host                                ? kHostBlocksMax
                          : params.movement.bytes() <= kFewBytes ? kRingsBlocksOfFewBytes
                                                                 : kRingsBlocks;
  const uint32_t blocks = std::max(session_.blocks_for(call, chosen), 2u);
  session_.launch_call(
      rings_kernel,
      {.blocks = blocks,
       .warps = on_host ? kHostRingsWarps : kRingsWarps,
       .overlap_previous = true},
      call.stream,
      RingsParams{params,
                  ring_chunk_bytes(params.movement.bytes(), session_.layout.rings.chunk_bytes),
                  blocks / 2});
}

bool CollectiveCalls::in_arena(const void* data, uint64_t bytes) const {
  const Arena& arena = arena_of(*session_.world);
  const auto begin = reinterpret_cast<uintptr_t>(arena.base());
  const auto at = reinterpret_cast<uintptr_t>(data);
  return at >= begin && at + bytes <= begin + arena.capacity();
}

/// Returns the protocol of a call. All ranks choose alike, else all raise the difference.
Protocol CollectiveCalls::protocol_for(const Request& request, const Movement& movement,
                                       const Call& call) const {
  const bool chosen = call.protocol == Protocol::automatic;
  if (call.protocol == Protocol::messages || call.protocol == Protocol::splits)
    throw InvalidArgument("protocol", "one that a caller may choose", "another one");
  if (call.protocol == Protocol::direct && session_.options.keep_inputs)
    throw InvalidArgument("protocol", "another one with keep_inputs", "direct");
  if (session_.links && !chosen)
    throw InvalidArgument("protocol", "automatic between hosts", "another");
  if (session_.links) return Protocol::rings;
  const Protocol protocol =
      chosen ? chosen_protocol(movement, session_.options, session_.members.count())
             : call.protocol;
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

void CollectiveCalls::launch_direct(const CallParams& params, const Call& call) {
  const bool on_host = session_.on_host();
  const uint32_t blocks = session_.blocks_for(call, on_host ? kHostBlocksMax : kDirectBlocks);
  const uint32_t warps = on_host ? kHostRingsWarps : kRingsWarps;
  const Movement& movement = params.movement;
  const bool divided = movement.reduces && !movement.input_has_parts;
  const uint64_t share = movement.bytes() / (divided ? params.ranks : 1);
  session_.launch_call(
      direct_kernel, {.blocks = blocks, .warps = warps, .overlap_previous = true}, call.stream,
      DirectParams{params, direct_chunk_bytes(share, movement.reduces, blocks * (warps - 1),
                                              session_.options.chunk_bytes)});
}

/// Each rank folds one part, then all gather the parts: fewer bytes than if each rank sent all of
/// its input to all others, unless there are only two.
void CollectiveCalls::launch_large_all_reduce(CallParams params, const Call& call) {
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

}  // namespace tokenyard::device_collectives
