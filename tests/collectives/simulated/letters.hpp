/// Messages beside the operations: each program sends to the others now and then, small and large
/// messages, and receives all that come. The checker knows which messages were sent to whom.
#pragma once

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/engine/engine.hpp"
#include "collectives/simulated/checkers.hpp"

namespace tokenyard::collectives::simulated {

struct Letter {
  Member from;
  uint64_t serial = 0;  ///< among all messages of its sender, in order
  uint64_t tag = 0;
};

/// A letter arrives at most once, as it was written, and after earlier letters of its sender with
/// the same tag. It does arrive if both ends live and its sender was not told otherwise; one with
/// an eager limit of 0 before its sender is told so.
class LetterChecker {
 public:
  void wrote(const Letter& letter, const Member& to) {
    pending_[{letter.from, letter.serial}] = to;
    ++written_;
  }
  void returned(const Letter& letter) { pending_.erase({letter.from, letter.serial}); }
  void ended(const Letter& letter, size_t eager_limit) const {
    expect(eager_limit > 0 || !pending_.contains({letter.from, letter.serial}),
           "letters: slot {} was told that letter {} was received, and it was not",
           letter.from.slot, letter.serial);
  }
  void arrived(const Member& at, const Letter& letter, bool as_written) {
    expect(as_written, "letters: slot {} has got letter {} of slot {} in pieces", at.slot,
           letter.serial, letter.from.slot);
    uint64_t& last = last_[{at, letter.from, letter.tag}];
    expect(letter.serial > last, "letters: slot {} has got letter {} of slot {} after letter {}",
           at.slot, letter.serial, letter.from.slot, last);
    last = letter.serial;
    const auto found = pending_.find({letter.from, letter.serial});
    // Under OnFailure::retry a letter waits for the receiver's replacement.
    if (found != pending_.end() && found->second.slot == at.slot) pending_.erase(found);
  }
  /// Returns two living members between which a letter has not arrived.
  std::optional<std::pair<Member, Member>> missing(const std::set<Member>& living) const {
    for (const auto& [letter, to] : pending_) {
      if (living.contains(letter.first) && living.contains(to)) return {{letter.first, to}};
    }
    return std::nullopt;
  }
  uint64_t written() const { return written_; }

 private:
  std::map<std::pair<Member, uint64_t>, Member> pending_;
  std::map<std::tuple<Member, Member, uint64_t>, uint64_t> last_;
  uint64_t written_ = 0;
};

/// The letters of one program.
class Letters {
 public:
  Letters(Member self, Engine& engine, LetterChecker& checker, std::chrono::nanoseconds timeout,
          size_t eager_limit)
      : self_(self),
        engine_(engine),
        checker_(checker),
        timeout_(timeout),
        eager_limit_(eager_limit) {}

  /// Writes to the next rank in turn. Called when an operation begins.
  void write(const View& view) {
    if (serial_ >= kDatagramsMax || view.members.size() < 2) return;
    const auto me = std::find(view.members.begin(), view.members.end(), self_);
    if (me == view.members.end()) return;
    const size_t further = 1 + serial_ % (view.members.size() - 1);
    const auto place = static_cast<size_t>(me - view.members.begin());
    const Member to = view.members[(place + further) % view.members.size()];
    const Letter letter{self_, ++serial_, kTags[serial_ % 2]};
    checker_.wrote(letter, to);
    Sent& sent = sent_.emplace_back(Sent{letter, text_of(letter), nullptr});
    sent.outcome = engine_.send(0, {sent.text.data(), sent.text.size(), DataType::int64}, to.slot,
                                letter.tag, timeout_, eager_limit_);
  }
  /// Checks the letters that have arrived, and waits for more.
  void settle() {
    std::erase_if(sent_, [&](const Sent& sent) {
      if (!sent.outcome->done()) return false;
      if (sent.outcome->error())
        checker_.returned(sent.letter);
      else
        checker_.ended(sent.letter, eager_limit_);
      return true;
    });
    for (Awaited& awaited : awaited_) {
      // It fails when ranks are lost, and when its time runs out.
      while (!awaited.outcome || awaited.outcome->done()) {
        if (awaited.outcome && !awaited.outcome->error()) read(awaited);
        awaited.text.assign(length_of(awaited.tag), 0);
        awaited.outcome =
            engine_.receive(0, {awaited.text.data(), awaited.text.size(), DataType::int64},
                            std::nullopt, awaited.tag, timeout_);
        if (awaited.outcome->done() && awaited.outcome->error()) return;  // this rank is out
      }
    }
  }

 private:
  using Text = std::vector<int64_t>;
  struct Sent {
    Letter letter;
    Text text;
    std::shared_ptr<Outcome> outcome;
  };
  struct Awaited {
    uint64_t tag = 0;
    Text text = {};
    std::shared_ptr<Outcome> outcome = nullptr;
  };
  static constexpr uint64_t kDatagramsMax = 16;
  static constexpr uint64_t kTags[] = {1, 2};

  /// The first is sent eagerly, unless the limit is 0, the second is offered first.
  static size_t length_of(uint64_t tag) { return tag == 1 ? 5 : PointToPoint::eager_max / 8 + 37; }
  static Text text_of(const Letter& letter) {
    Text text(length_of(letter.tag));
    for (size_t i = 0; i < text.size(); ++i)
      text[i] = contribution(letter.from, letter.tag, letter.serial * 10'000 + i);
    text[0] = letter.from.slot;
    text[1] = static_cast<int64_t>(letter.from.incarnation);
    text[2] = static_cast<int64_t>(letter.serial);
    return text;
  }
  void read(const Awaited& awaited) {
    const Text& text = awaited.text;
    const Letter letter{{static_cast<Slot>(text[0]), static_cast<uint64_t>(text[1])},
                        static_cast<uint64_t>(text[2]),
                        awaited.tag};
    const bool from_its_sender = awaited.outcome->source() == letter.from.slot;
    checker_.arrived(self_, letter, from_its_sender && text == text_of(letter));
  }

  const Member self_;
  Engine& engine_;
  LetterChecker& checker_;
  const std::chrono::nanoseconds timeout_;
  const size_t eager_limit_;
  uint64_t serial_ = 0;
  std::list<Sent> sent_;
  Awaited awaited_[2] = {{kTags[0]}, {kTags[1]}};
};

}  // namespace tokenyard::collectives::simulated
