#include "collectives/device/host/session.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "collectives/device/host/agreed_options.hpp"
#include "collectives/device/host/requests.hpp"
#include "collectives/device/kernels/direct.hpp"
#include "collectives/device/kernels/messages.hpp"
#include "collectives/device/kernels/packets.hpp"
#include "collectives/device/kernels/rings.hpp"
#include "collectives/device/kernels/slots.hpp"
#include "collectives/device/kernels/wait_phase.hpp"
#include "device/await_stream.hpp"
#include "fabric/agreement.hpp"
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

/// Bytes of the counters of all blocks and channels.
size_t channels_bytes(uint32_t ranks) {
  return size_t{kBlocksMax} * ranks * kRoles * sizeof(uint64_t);
}

}  // namespace

Session::Session(World& of_caller, const Options& options)
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
void Session::open() {
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
  await_stream(accelerator, world.rank(), stream, 2 * std::max(longest_timeout, world.timeout()),
               "DeviceCollectives: " + what);
}

void Session::await_last() {
  for (const LastStream* used : {&last, &last_messages})
    if (used->in_use()) await(used->get(), "the end of its last call");
}

void Session::require_open() const {
  if (closed) throw InvalidArgument("collectives", "open ones", "closed ones");
}

void Session::require_one_host(const char* what) const {
  if (links)
    throw Unsupported("DeviceCollectives",
                      fmt::format("{} between hosts do not exist; Collectives has them", what));
}

void Session::begin_call() const {
  require_open();
  check();
}

void Session::check() const {
  if (!errors.failed()) return;
  errors.check(phase_names());
  throw_difference();
}

void Session::throw_difference() const {
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

void Session::throw_other_counts() const {
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

CallParams Session::params_of(const Request& request, const Movement& movement, Protocol protocol,
                              const Call& call) {
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

uint32_t Session::blocks_for(const Call& call, uint32_t chosen) const {
  const uint32_t asked = call.sms != 0 ? call.sms : options.sms;
  return std::clamp(asked != 0 ? asked : chosen, 1u,
                    std::min(kBlocksMax, accelerator.capacity().multiprocessors));
}

}  // namespace tokenyard::device_collectives
