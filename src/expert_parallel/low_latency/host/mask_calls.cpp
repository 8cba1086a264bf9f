#include "expert_parallel/low_latency/host/mask_calls.hpp"

#include <fmt/format.h>

#include "base/tensor_arguments.hpp"
#include "expert_parallel/low_latency/host/members.hpp"
#include "expert_parallel/low_latency/host/options.hpp"

namespace tokenyard::low_latency {

void MaskCalls::write_mask(const TensorView& out, Stream stream) {
  context_.require_open();
  require_view("out", out, {DataType::int32}, {setup_.world.size()}, alignof(int32_t));
  context_.streams.last.begin_call(stream);
  setup_.accelerator.copy(out.data, context_.masks.masks().failed, out.bytes(), stream);
}

std::set<uint32_t> MaskCalls::all_ranks() const {
  std::set<uint32_t> ranks;
  for (uint32_t rank = 0; rank < setup_.world.size(); ++rank) ranks.insert(rank);
  return ranks;
}

void MaskCalls::require_other(uint32_t rank) const {
  if (rank >= setup_.world.size() || rank == setup_.world.rank())
    throw InvalidArgument("rank", fmt::format("another of the {} ranks", setup_.world.size()),
                          std::to_string(rank));
}

uint32_t MaskCalls::epoch() const {
  context_.require_open();
  return Epochs::last_of(context_.epochs.read(context_.streams));
}

/// A batch in progress may hold zeros for rows that a masked rank sent too late, which are
/// indistinguishable from rows of zeros once the mask is cleared; or it may lack rows of a rank
/// that waits for their sums. Nor does a rank know which ranks others have masked. So batches in
/// progress end, whichever rank was masked.
void MaskCalls::readmit(const std::set<uint32_t>& ranks, Drained drained) {
  const Stream stream = context_.streams.last.get();
  context_.batches.end();
  context_.batches.forget_rows(stream);
  std::byte* const window = context_.windows.mine();
  for (uint32_t rank = 0; rank < setup_.world.size(); ++rank) {
    if (!ranks.contains(rank) || context_.masks.absent(rank)) continue;
    for (const uint32_t parity : {0, 1}) {
      setup_.accelerator.fill(window + setup_.layout.row(parity, rank, 0), 0xff,
                              setup_.options.tokens_max * setup_.layout.row_bytes(), stream);
      setup_.accelerator.fill(window + setup_.layout.partial(parity, rank, 0), 0xff,
                              setup_.options.tokens_max * setup_.layout.partial_bytes(), stream);
    }
    setup_.accelerator.copy(window + setup_.layout.drained(rank), &drained, sizeof(drained),
                            stream);
    context_.masks.clear(rank, stream);
    context_.findings.forget(rank);
  }
  context_.streams.await(stream, "refilled staging");
}

void MaskCalls::update_mask(uint32_t rank, bool masked) {
  context_.require_open();
  require_other(rank);
  if (masked) {
    context_.masks.leave_out(rank, context_.streams.last.get());
    // Later launches must come after the mask on any stream: replays are not ordered with a stream
    // that is not in use.
    if (!context_.streams.last.in_use())
      context_.streams.await(context_.streams.last.get(), "a mask");
    return;
  }
  if (context_.masks.absent(rank))
    throw InvalidArgument("rank", "a rank whose slot a process fills",
                          fmt::format("rank {}, whose slot is empty", rank));
  context_.batches.require_hooks_called("a rank is unmasked");
  const Workspace workspace = context_.epochs.read(context_.streams);
  readmit({rank}, Epochs::drained_by(workspace));
}

void MaskCalls::clear_mask() {
  context_.require_open();
  context_.batches.require_hooks_called("the mask is cleared");
  const Workspace workspace = context_.epochs.read(context_.streams);
  std::set<uint32_t> masked_now;
  for (const FailedRank& rank : context_.masks.list()) masked_now.insert(rank.rank);
  readmit(masked_now, Epochs::drained_by(workspace));
}

void MaskCalls::restart(uint32_t epoch) {
  const uint32_t last = this->epoch();
  if (Epochs::is_later(last, epoch))
    throw InvalidArgument("epoch", fmt::format("at least {}, that of the last call", last),
                          std::to_string(epoch));
  const Workspace begun = Epochs::counting_from(epoch);
  context_.epochs.write(begun, context_.streams);
  // The staging of live ranks is refilled too: a call of theirs may have ended early.
  readmit(all_ranks(), {epoch, epoch});
}

void MaskCalls::set_expert_map(std::span<const int32_t> expert_at) {
  context_.require_open();
  context_.experts.require_agreed(expert_at, "LowLatency: expert map");
  context_.streams.await_last_call();
  context_.experts.set_next(expert_at);
}

void MaskCalls::mask_the_dead() {
  const std::vector<bool>& living = context_.experts.living();
  const Stream stream = context_.streams.last.get();
  for (uint32_t rank = 0; rank < living.size(); ++rank)
    if (!living[rank]) context_.masks.leave_out(rank, stream);
  // Later calls may be on any stream.
  context_.streams.await(stream, "masks");
}

void MaskCalls::evict(const std::vector<uint32_t>& ranks, std::optional<uint32_t> epoch) {
  context_.require_open();
  std::vector<bool> living = context_.experts.living();
  for (const uint32_t rank : ranks) {
    require_other(rank);
    living[rank] = false;
  }
  if (epoch)
    restart(*epoch);
  else
    context_.streams.await_last_call();
  context_.experts.set_living(living);
  mask_the_dead();
}

std::vector<uint32_t> MaskCalls::admit() {
  context_.require_open();
  // Nothing of this rank is under way when another one learns that it is here.
  const uint32_t last = epoch();
  context_.drain_messages(false);
  // The steps of CallContext's constructor, in which the ranks that join are.
  agree_on_options(setup_.world, setup_.options);
  PeerWindows::accompany(setup_.world);
  Batches::accompany(setup_.world);
  const Members members =
      Members::gather(setup_.world, last, {context_.experts.given(), context_.experts.version()});
  const Workspace begun = Epochs::counting_from(members.epoch);
  context_.epochs.write(begun, context_.streams);
  readmit(all_ranks(), {members.epoch, members.epoch});
  context_.experts.set_living(members.living);
  mask_the_dead();
  std::optional<PutPeers>& put_peers = context_.put_peers;
  if (put_peers) put_peers->begin_anew(context_.streams, members.epoch);
  // The last step, after which other ranks may write here.
  context_.windows.exchange(context_.streams, put_peers ? &*put_peers : nullptr);
  return members.joined;
}

}  // namespace tokenyard::low_latency
