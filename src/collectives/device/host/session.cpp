#include "collectives/device/host/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <utility>

#include "collectives/device/host/agreed_options.hpp"
#include "collectives/device/host/call_errors.hpp"
#include "collectives/device/host/requests.hpp"
#include "collectives/device/kernels/direct.hpp"
#include "collectives/device/kernels/messages.hpp"
#include "collectives/device/kernels/packets.hpp"
#include "collectives/device/kernels/restore.hpp"
#include "collectives/device/kernels/rings.hpp"
#include "collectives/device/kernels/slots.hpp"
#include "collectives/device/kernels/splits.hpp"
#include "device/await_stream.hpp"
#include "fabric/agreement.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/exchange_window_addresses.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::device_collectives {

namespace {

Signature signature_of(const Request& request, const Movement& movement, Protocol protocol) {
  const bool moves = request.operation != Operation::barrier;
  return Signature::of(request.operation, movement.reduces ? request.op : ReduceOp::sum,
                       moves ? request.type() : DataType::uint8, protocol, request.root,
                       movement.bytes(), request.factor);
}

std::exception_ptr error_in(const ErrorRecord& errors, const Members& members) {
  try {
    check_calls(errors, members);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

/// Bytes of the counters of all blocks and channels.
size_t channels_bytes(uint32_t ranks) {
  return channel_words(ranks) * sizeof(uint64_t);
}

std::optional<FinishedCalls> legacy_of(Session* before) {
  if (before == nullptr) return std::nullopt;
  const Finished finished = before->settle();
  const auto launches = std::as_bytes(std::span(&finished.launches, 1));
  return FinishedCalls{finished.calls, {launches.begin(), launches.end()}};
}

/// Returns how many launches all ranks have finished which have gone on.
uint64_t launches_of(const AgreedCalls& agreed) {
  uint64_t fewest = UINT64_MAX;
  for (const auto& rank : agreed.ranks) {
    uint64_t launches = 0;
    if (!rank || rank->state.size() != sizeof(launches)) continue;
    std::memcpy(&launches, rank->state.data(), sizeof(launches));
    fewest = std::min(fewest, launches);
  }
  return fewest;
}

/// Returns the layout of each member's window.
WindowLayout layout_in(const World& world, const Options& options, const Members& members) {
  if (!spans_hosts(world)) return layout_of(options, members.count());
  const bool are_alone = host_map_of(world, members).locals_max() == 1;
  return layout_between_hosts(options, members.count(), !are_alone);
}

/// Bytes that are kept at least, so that calls of few bytes share them.
constexpr uint64_t kKeptBytesMin = 64 << 10;

}  // namespace

Session::Session(std::shared_ptr<World> of, const Options& options, Session* before)
    : world(std::move(of)),
      accelerator(accelerator_of(*world)),
      members(Members::of(*world)),
      agreed_(agree_on_calls(*world, "DeviceCollectives", legacy_of(before))),
      key(agree_on_options(*world, options)),
      options(options),
      layout(layout_in(*world, options, members)),
      window(allocate_on_all(*world, layout.bytes(), "DeviceCollectives: window", ArenaEnd::upper)),
      workspace(accelerator, sizeof(Workspace), DeviceMemory::Kind::device),
      channels(accelerator, channels_bytes(members.count()), DeviceMemory::Kind::device),
      errors(accelerator, abort_flag_of(*world)),
      message_errors(accelerator, abort_flag_of(*world)),
      log(agreed_.finished),
      last(accelerator),
      last_messages(accelerator) {
  accelerator.prepare(slots_kernel.entry);
  accelerator.prepare(packets_kernel.entry);
  accelerator.prepare(rings_kernel.entry);
  accelerator.prepare(direct_kernel.entry);
  accelerator.prepare(messages_kernel.entry);
  accelerator.prepare(splits_kernel.entry);
  if (options.keep_inputs) accelerator.prepare(restore_kernel.entry);
  open();
  seen_done_ = agreed_.finished;
  make_links();
  if (before == nullptr) return;
  before->conclude(*this);
  undone_ = before->undone_here();
}

/// Zeroes the window's words before any peer learns its address.
void Session::open() {
  accelerator.fill(window.data(), 0, layout.chunks_at(), Stream{});
  Workspace begin{};
  std::fill_n(begin.epochs, kBlocksMax, uint64_t{epoch_before(*world)});
  accelerator.copy(workspace.as<void>(), &begin, sizeof(begin), Stream{});
  accelerator.fill(channels.as<void>(), 0, channels_bytes(members.count()), Stream{});
  await(Stream{}, "an empty window");
  windows.layout = layout;
  exchange_window_addresses(
      *world, window, "DeviceCollectives: windows", [&](std::span<std::byte* const> of_slots) {
        std::vector<std::byte*> addresses;
        for (const uint32_t slot : members.slots) addresses.push_back(of_slots[slot]);
        windows.peers = Peers::of(addresses, members.self, nullptr);
        if (addresses.size() <= Peers::kAtHand) return;
        const size_t bytes = std::span(addresses).size_bytes();
        table.emplace(accelerator, bytes, DeviceMemory::Kind::device);
        accelerator.copy(table->as<void>(), addresses.data(), bytes, Stream{});
        await(Stream{}, "the table of windows");
        windows.peers.table = table->as<std::byte*>();
      });
}

/// Peers know the window by now: it is kept if this fails here alone.
void Session::make_links() {
  if (!spans_hosts(*world)) return;
  try {
    links = std::make_unique<HostLinks>(*world, members, options);
    message_links = std::make_unique<MessageLinks>(*world, members, links->map(), options);
  } catch (const std::exception&) {
    window.quarantine();
    throw;
  }
}

Session::~Session() {
  if (closed) return;
  try {
    // A running kernel may still use the memory freed below.
    await_last();
  } catch (const std::exception&) {
    // A destructor cannot report it; the window is kept in any case.
  }
  window.quarantine();
}

void Session::await(Stream stream, const std::string& what) {
  await_stream(accelerator, world->rank(), stream, 2 * std::max(longest_timeout, world->timeout()),
               "DeviceCollectives: " + what);
}

void Session::await_last() {
  for (const LastStream* used : {&last, &last_messages})
    if (used->in_use()) await(used->get(), "the end of its last call");
}

void Session::require_keeps(Stream stream) const {
  if (accelerator.captures(stream))
    throw InvalidArgument("stream", "one that is not captured, for a call that keeps its input",
                          "one that is captured into a CUDA graph");
}

void Session::keep(const TensorView& tensor, Stream stream) {
  if (!kept_ || kept_bytes_ < tensor.bytes()) {
    await_last();  // Nothing may use the memory that is freed.
    kept_.reset();
    kept_bytes_ = std::bit_ceil(std::max<uint64_t>(tensor.bytes(), kKeptBytesMin));
    kept_.emplace(accelerator, kept_bytes_, DeviceMemory::Kind::device);
  }
  accelerator.copy(kept_->as<void>(), tensor.data, tensor.bytes(), stream);
}

void Session::clear_empty(void* result, uint64_t part, Stream stream) {
  for (uint32_t slot = 0; slot < EmptySlots::kSlotsMax; ++slot)
    if ((members.empty.bits >> slot & 1) != 0 && part != 0)
      accelerator.fill(static_cast<std::byte*>(result) + slot * part, 0, part, stream);
}

void Session::restore_if_failed(const TensorView& tensor, Stream stream) {
  const uint64_t pieces = (tensor.bytes() + Piece16::kBytes - 1) / Piece16::kBytes;
  const uint32_t warps = on_host() ? 1 : kRestoreThreadsMax / kWarpLanes;
  const uint64_t blocks = pieces / (uint64_t{warps} * kWarpLanes) + 1;
  launch(accelerator, restore_kernel,
         {.blocks = static_cast<uint32_t>(std::min<uint64_t>(blocks, on_host() ? 1 : kBlocksMax)),
          .warps = warps,
          .cooperative = false,
          .local = true},
         stream,
         RestoreParams{.failed = errors.wait_context({}).failed,
                       .kept = kept_->as<const std::byte>(),
                       .tensor = static_cast<std::byte*>(tensor.data),
                       .bytes = tensor.bytes()});
}

void Session::check() const {
  check_calls(errors, members);
  check_calls(message_errors, members);
}

/// The last launch that began has advanced the epoch of at least one block. A launch after one that
/// failed advances none. So if one has failed, it is the newest.
Finished Session::settle() {
  if (!settled_) {
    await_last();
    if (captured()) accelerator.drain();
    Workspace words{};
    accelerator.copy(&words, workspace.as<Workspace>(), sizeof(words), Stream{});
    await(Stream{}, "its epochs");
    const uint64_t newest = *std::ranges::max_element(words.epochs) - epoch_before(*world);
    const uint64_t launches = errors.failed() && newest > 0 ? newest - 1 : newest;
    // The host does not know of the launches of a graph.
    settled_ = {launches, captured() ? seen_done_ : log.finished_by(launches)};
  }
  return {settled_->launches, std::min(settled_->calls, refused_ - 1)};
}

std::exception_ptr Session::error_of(uint64_t call, bool ended) {
  if (concluded_) {
    if (call <= *concluded_) return nullptr;
    return std::make_exception_ptr(aborted(call));
  }
  if (!errors.failed()) {
    if (ended) seen_done_ = std::max(seen_done_, call);
    return nullptr;
  }
  if (call <= seen_done_) return nullptr;
  const std::exception_ptr error = error_in(errors, members);
  try {
    settle();
  } catch (const std::exception&) {
    return error;  // Work behind the calls did not end in time.
  }
  // All ranks have finished the launches before this rank's last one.
  const uint64_t launches = settled_->launches;
  if (!captured() && launches > 0 && call <= log.finished_by(launches - 1)) return nullptr;
  refused_ = std::min(refused_, call);
  return error;
}

std::exception_ptr Session::error_of_messages() const {
  return message_errors.failed() ? error_in(message_errors, members) : nullptr;
}

void Session::conclude(const Session& next) {
  concluded_ = std::min(next.agreed_.finished, log.calls());
  lost_ = lost_between(*world, *next.world, next.agreed_.newcomers);
  launches_concluded_ = launches_of(next.agreed_);
}

OperationAborted Session::aborted(uint64_t call) const {
  return {fmt::format("DeviceCollectives.{}, which not all ranks have finished: call",
                      log.name_of(call)),
          call, membership_epoch_of(*world), lost_};
}

std::optional<OperationAborted> Session::undone_here() {
  if (settle().calls > *concluded_) return aborted(*concluded_ + 1);
  if (!captured() || settled_->launches <= launches_concluded_) return std::nullopt;
  return OperationAborted("DeviceCollectives: a call that a CUDA graph may have made: after call",
                          *concluded_, membership_epoch_of(*world), lost_);
}

void Session::retire() {
  if (!captured()) return;
  errors.clear();
  message_errors.clear();
  // Every rank counts from another number on, so no word of a replay is ever awaited; and a wait
  // ends at once.
  Workspace words{};
  std::ranges::fill(words.epochs, retired_epoch(settled_->launches, world->rank()));
  accelerator.copy(workspace.as<void>(), &words, sizeof(words), Stream{});
  accelerator.fill(channels.as<void>(), 0xff, channels_bytes(members.count()), Stream{});
  await(Stream{}, "the end of what was captured");
  world->cancel();
}

bool Session::take_replay() {
  if (!captured() || !failed()) return false;
  errors.clear();
  message_errors.clear();
  await(Stream{}, "the error of a replay");
  return true;
}

CallParams Session::params_of(const Request& request, const Movement& movement, Protocol protocol,
                              const Call& call) {
  if (call.sms > kBlocksMax)
    throw InvalidArgument("sms", fmt::format("at most {}", kBlocksMax),
                          fmt::format("{}", call.sms));
  const auto timeout = timeout_of(call);
  longest_timeout = std::max(longest_timeout, timeout);
  return {.rank = members.self,
          .ranks = members.count(),
          .empty = members.empty,
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

uint32_t Session::blocks_for(const Call& call, uint32_t chosen) const {
  const uint32_t asked = call.sms != 0 ? call.sms : options.sms;
  return std::clamp(asked != 0 ? asked : chosen, 1u,
                    std::min(kBlocksMax, accelerator.capacity().multiprocessors));
}

}  // namespace tokenyard::device_collectives
