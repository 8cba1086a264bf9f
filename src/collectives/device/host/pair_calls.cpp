#include "collectives/device/host/pair_calls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "collectives/device/host/launch_shapes.hpp"
#include "collectives/device/host/parts.hpp"
#include "collectives/device/host/protocol_choice.hpp"
#include "collectives/device/kernels/messages.hpp"
#include "collectives/device/kernels/splits.hpp"
#include "fabric/agreement.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::device_collectives {

namespace {

/// Blocks of a launch of messages, unless options say otherwise.
constexpr uint32_t kMessagesBlocks = 16;
/// Blocks of such a launch that serve ranks of other hosts, at most: one per rank fills its link.
constexpr uint32_t kFarBlocks = 8;

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

/// A message from this rank to itself.
struct Copy {
  ConstTensorView from;
  TensorView to;
};

/// Returns the messages of a call from this rank to itself, which must be sent and received in it.
std::vector<Copy> copies_of(const std::vector<Send>& sends, const std::vector<Receive>& receives,
                            uint32_t self) {
  std::vector<Copy> copies;
  std::vector<uint32_t> tags;
  for (const Send& send : sends) {
    if (send.to != self) continue;
    copies.push_back({send.tensor, {}});
    tags.push_back(send.tag);
  }
  size_t received = 0;
  for (const Receive& receive : receives) {
    if (receive.from != self) continue;
    if (received == copies.size())
      throw InvalidArgument("from", "another rank, unless the same call sends to this one",
                            fmt::format("{}", self));
    Copy& copy = copies[received];
    check_array("tensor", receive.tensor);
    check_parts("tensor", copy.from, receive.tensor.type, receive.tensor.elements());
    require(receive.tag == tags[received], "tag",
            fmt::format("{} as this rank sends", tags[received]), receive.tag);
    copy.to = receive.tensor;
    ++received;
  }
  if (received != copies.size())
    throw InvalidArgument("to", "another rank, unless the same call receives from this one",
                          fmt::format("{}", self));
  return copies;
}

}  // namespace

void PairCalls::check_members() const {
  if (session_.links) return;
  const uint32_t members = session_.members.count();
  require(2 * (members - 1) <= kMessagesMax, "ranks",
          fmt::format("at most {}", kMessagesMax / 2 + 1), members);
}

void PairCalls::all_to_all(ConstTensorView input, TensorView result, const Splits& splits,
                           const Call& call) {
  const std::vector<ConstTensorView> sent =
      cut("sent", "input", input, result.type, splits.sent, session_.world->size());
  const std::vector<TensorView> received =
      cut("received", "result", result, input.type, splits.received, session_.world->size());
  const uint32_t rank = session_.world->rank(), ranks = session_.world->size();
  if (input.data == result.data && input.elements() > 0)
    throw InvalidArgument("result", "another array than the input", "the same");
  if (splits.sent[rank] != splits.received[rank])
    throw InvalidArgument("received",
                          fmt::format("{} elements of this rank's own", splits.sent[rank]),
                          fmt::format("{}", splits.received[rank]));
  check_members();
  const Request request{.operation = Operation::all_to_all,
                        .input = input,
                        .result = result,
                        .rank = rank,
                        .ranks = ranks};
  if (session_.links)
    require(ranks <= kKnownSplitsMax, "ranks", fmt::format("at most {}", kKnownSplitsMax), ranks);
  const CallParams params = session_.params_of(request, {}, Protocol::messages, call);
  session_.last.begin_call(call.stream);
  for (uint32_t slot = 0; slot < ranks; ++slot)
    if (!session_.members.at(slot) && received[slot].bytes() != 0)
      session_.accelerator.fill(received[slot].data, 0, received[slot].bytes(), call.stream);
  if (!session_.links) return exchange_known(params, sent, received, call);
  std::vector<CountWord> known;
  for (uint32_t slot = 0; slot < ranks; ++slot)
    known.push_back(CountWord::of(sent[slot].bytes(), received[slot].bytes()));
  launch_splits(params, {.slots = ranks}, known, call);
}

/// The same inside a host.
void PairCalls::exchange_known(const CallParams& described,
                               const std::vector<ConstTensorView>& sent,
                               const std::vector<TensorView>& received, const Call& call) {
  const Members& members = session_.members;
  const uint32_t rank = session_.world->rank();
  MessagesParams params{.call = described,
                        .collective = true,
                        .channels = session_.channels.as<uint64_t>(),
                        .own_bytes = sent[rank].bytes(),
                        .own_input = sent[rank].as<std::byte>(),
                        .own_result = received[rank].as<std::byte>(),
                        .count = 0,
                        .messages = {}};
  for (uint32_t turn = 1; turn < members.count(); ++turn) {
    // Every rank begins with another one.
    const uint32_t peer = (members.self + turn) % members.count(), slot = members.slots[peer];
    params.messages[params.count++] = message_of(sent[slot], peer, 0, session_.options, false);
    params.messages[params.count++] = message_of(received[slot], peer, 0, session_.options, true);
  }
  launch(params, call);
}

void PairCalls::all_to_all(ConstTensorView input, TensorView result, const DeviceSplits& splits,
                           const Call& call) {
  check_array("input", input);
  check_array("result", result);
  check_parts("result", result, input.type, result.elements());
  if (input.data == result.data && input.elements() > 0)
    throw InvalidArgument("result", "another array than the input", "the same");
  if (splits.sent == nullptr || splits.received == nullptr)
    throw InvalidArgument("splits", "arrays of the device", "none");
  if (splits.sent == splits.received)
    throw InvalidArgument("received_splits", "another array than the splits", "the same");
  check_members();
  const Request request{
      .operation = Operation::all_to_all, .input = input, .result = result, .ranks = 1};
  const CallParams params = session_.params_of(request, {}, Protocol::splits, call);
  session_.last.begin_call(call.stream);
  launch_splits(params,
                {.splits = splits.sent,
                 .received = splits.received,
                 .slots = session_.world->size(),
                 .element_bytes = static_cast<uint32_t>(bytes_of(input.type)),
                 .input_bytes = input.bytes(),
                 .result_bytes = result.bytes()},
                {}, call);
}

/// `known`: if the host knows the splits, which it does only between hosts.
void PairCalls::launch_splits(const CallParams& params, const SplitArrays& arrays,
                              const std::vector<CountWord>& known, const Call& call) {
  if (session_.links) {
    session_.links->launch_splits(params, arrays, known, session_.blocks_for(call, kChannelsMax),
                                  call.stream);
    if (!session_.accelerator.captures(call.stream)) session_.log.launched();
    return;
  }
  const bool on_host = session_.on_host();
  const uint32_t warps = on_host ? kHostRingsWarps : kRingsWarps;
  const uint32_t served = kMessagesOfWarp * (warps - 1);
  const uint32_t least = (2 * session_.members.count() + served - 1) / served;
  const uint32_t blocks = session_.blocks_for(call, on_host ? kHostBlocksMax : kMessagesBlocks);
  session_.launch_call(
      splits_kernel, {.blocks = std::max(blocks, least), .warps = warps, .overlap_previous = true},
      call.stream, SplitsParams{params, arrays, session_.options.chunk_bytes});
}

void PairCalls::exchange(const std::vector<Send>& sends, const std::vector<Receive>& receives,
                         const Call& call) {
  if (session_.accelerator.capacity().one_grid)
    throw Unsupported("messages", "ranks that share a GPU launch their kernels together");
  require(sends.size() + receives.size() <= kMessagesMax, "messages",
          fmt::format("at most {}", kMessagesMax), sends.size() + receives.size());
  Request request;
  request.rank = session_.world->rank();
  request.ranks = session_.world->size();
  CallParams described = session_.params_of(request, {}, Protocol::messages, call);
  described.wait_context = session_.message_errors.wait_context(session_.timeout_of(call));
  MessagesParams params{.call = described,
                        .collective = false,
                        .channels = session_.channels.as<uint64_t>(),
                        .own_bytes = 0,
                        .own_input = nullptr,
                        .own_result = nullptr,
                        .count = 0,
                        .messages = {}};
  std::vector<uint64_t> chunks[kRoles] = {std::vector<uint64_t>(session_.world->size()),
                                          std::vector<uint64_t>(session_.world->size())};
  std::vector<Message> far;
  const uint32_t self = session_.world->rank();
  const std::vector<Copy> own = copies_of(sends, receives, self);
  const auto add = [&](const char* argument, const ConstTensorView& tensor,
                       const char* peer_argument, uint32_t peer, uint32_t tag, bool receiving) {
    check_array(argument, tensor);
    require(peer < session_.world->size(), peer_argument,
            fmt::format("a rank below {}", session_.world->size()), peer);
    require(tag < kTags, "tag", fmt::format("less than {}", kTags), tag);
    if (peer == self) return;
    const std::optional<uint32_t> member = session_.members.at(peer);
    if (!member)
      throw OperationAborted(receiving ? "receive" : "send", session_.log.calls(),
                             membership_epoch_of(*session_.world), {peer});
    Message message = message_of(tensor, *member, tag, session_.options, receiving);
    if (session_.message_links) {
      if (const auto link = session_.message_links->link_to(*member)) {
        session_.message_links->require_queue();
        message.first = *link;
        message.chunk_bytes = session_.message_links->chunk_bytes();
        far.push_back(message);
        return;
      }
    }
    uint64_t& before = chunks[receiving ? 1 : 0][peer];
    message.first = before;
    before += message.chunks(false);
    params.messages[params.count++] = message;
  };
  for (const Send& send : sends) add("tensor", send.tensor, "to", send.to, send.tag, false);
  for (const Receive& receive : receives)
    add("tensor", receive.tensor, "from", receive.from, receive.tag, true);
  // Those with one rank stay in their order.
  std::ranges::stable_sort(far, {}, [](const Message& message) {
    return std::pair{message.first, message.receives};
  });
  for (const Message& message : far) params.messages[params.count++] = message;
  if (params.count == 0 && own.empty()) return;
  session_.last_messages.begin_call(call.stream);
  for (const Copy& copy : own)
    if (copy.from.bytes() != 0 && copy.from.data != copy.to.data)
      session_.accelerator.copy(copy.to.data, copy.from.data, copy.from.bytes(), call.stream);
  if (params.count == 0) return;
  if (far.empty()) return launch(params, call);
  launch_far(params, static_cast<uint32_t>(far.size()), call);
}

uint32_t PairCalls::blocks_of(const MessagesParams& params, const Call& call) const {
  const bool on_host = session_.on_host();
  const uint32_t warps = on_host ? kHostRingsWarps : kRingsWarps;
  uint32_t blocks = session_.blocks_for(call, on_host ? kHostBlocksMax : kMessagesBlocks);
  if (!session_.accelerator.capacity().one_grid) {  // Whose ranks launch grids of one shape.
    uint64_t chunks = params.own_bytes / session_.options.chunk_bytes;
    for (uint32_t i = 0; i < params.count; ++i)
      chunks += params.messages[i].chunks(params.collective);
    blocks = static_cast<uint32_t>(std::clamp<uint64_t>(chunks / (warps - 1) + 1, 1, blocks));
  }
  const uint32_t least =
      (params.count + kMessagesOfWarp * (warps - 1) - 1) / (kMessagesOfWarp * (warps - 1));
  return std::max(blocks, least);
}

void PairCalls::launch(const MessagesParams& params, const Call& call) {
  const LaunchShape shape{.blocks = blocks_of(params, call),
                          .warps = session_.on_host() ? kHostRingsWarps : kRingsWarps,
                          .overlap_previous = true};
  if (params.collective)
    session_.launch_call(messages_kernel, shape, call.stream, params);
  else
    tokenyard::launch(session_.accelerator, messages_kernel, shape, call.stream, params);
}

void PairCalls::launch_far(const MessagesParams& params, uint32_t far_count, const Call& call) {
  uint32_t links = 0;
  for (uint32_t i = params.count - far_count; i < params.count; ++i)
    if (i == params.count - far_count || params.messages[i].first != params.messages[i - 1].first)
      ++links;
  MessagesParams near = params;
  near.count -= far_count;
  const uint32_t near_blocks = near.count == 0 ? 0 : blocks_of(near, call);
  const uint32_t far_blocks =
      std::min(links, session_.blocks_for(call, session_.on_host() ? kHostBlocksMax : kFarBlocks));
  tokenyard::launch(session_.accelerator, messages_between_hosts_kernel,
                    {.blocks = near_blocks + far_blocks,
                     .warps = session_.on_host() ? kHostRingsWarps : kRingsWarps,
                     .overlap_previous = true},
                    call.stream, session_.message_links->params_of(params, far_count, near_blocks));
}

}  // namespace tokenyard::device_collectives
