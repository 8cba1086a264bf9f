#include "collectives/algorithms/rooted.hpp"

#include <algorithm>

#include "collectives/algorithms/bytes.hpp"

namespace tokenyard::collectives {

Tree binomial_tree(const Team& team, uint32_t root) {
  const uint32_t ranks = team.size(), first = team.place_of(root);
  const uint32_t me = (team.me + ranks - first) % ranks;
  const auto rank_at = [&](uint32_t place) { return team.ranks[(place + first) % ranks]; };
  Tree tree;
  uint32_t bit = 1;
  while (bit < ranks && (me & bit) == 0) bit *= 2;
  if (me != 0) tree.parent = rank_at(me - bit);
  for (bit /= 2; bit > 0; bit /= 2) {
    if (me + bit < ranks) tree.children.push_back(rank_at(me + bit));
  }
  tree.forwards = ranks > 2;
  return tree;
}

Tree chain(const Team& team, uint32_t root) {
  Tree tree;
  if (team.ranks[team.me] != root) tree.parent = team.before(1);
  if (team.after(1) != root) tree.children.push_back(team.after(1));
  tree.forwards = team.size() > 2;
  return tree;
}

Task broadcast_along(Attempt& attempt, Tree tree, Array array) {
  FrameProtocol& talk = attempt.talk;
  const std::span<std::byte> all = bytes_of_array(array);
  // Chunks let all ranks work at the same time. If no rank forwards, one chunk suffices: channels
  // stream its content, and over TCP each frame's header costs a packet.
  const size_t chunk = tree.forwards ? attempt.chunk_bytes : all.size();
  size_t at = 0;
  do {
    const std::span<std::byte> piece = all.subspan(at, std::min(chunk, all.size() - at));
    if (tree.parent != Tree::nobody) {
      Receive incoming = talk.receive(tree.parent, piece, attempt.large && tree.children.empty());
      co_await incoming;
    }
    for (const uint32_t child : tree.children) talk.post(child, piece);
    at += piece.size();
  } while (at < all.size());
  Sent sent = talk.sent();
  co_await sent;
}

Task reduce_along(Attempt& attempt, Tree tree, Summands summands) {
  FrameProtocol& talk = attempt.talk;
  const size_t width = bytes_of(summands.type);
  const Combine combine = combine_of(summands.type, summands.op);
  const size_t chunk = std::max<size_t>(attempt.chunk_bytes / width, 1);
  size_t at = 0;
  do {
    const size_t elements = std::min(chunk, summands.elements - at);
    std::byte* sums = summands.data + at * width;
    // Children with the smallest subtrees finish first.
    for (auto child = tree.children.rbegin(); child != tree.children.rend(); ++child) {
      auto theirs =
          talk.receive_each(*child, elements * width, width, [=](uint64_t off, auto piece) {
            combine(sums + off, sums + off, piece.data(), piece.size() / width);
          });
      co_await theirs;
    }
    if (tree.parent != Tree::nobody) talk.post(tree.parent, {sums, elements * width});
    at += elements;
  } while (at < summands.elements);
  Sent sent = talk.sent();
  co_await sent;
}

}  // namespace tokenyard::collectives
