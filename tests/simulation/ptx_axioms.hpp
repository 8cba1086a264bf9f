/// The axioms of the PTX memory model, checked by brute force: an oracle for the machine in
/// src/simulation, written independently of it.
///
/// From "Memory Consistency Model" in the PTX ISA (8.x), for strong operations of one size and one
/// proxy:
///
///     morally strong     in program order, or both strong with scopes that include each other's
///                        thread; memory operations must access the same place
///     observation        from a write to a morally strong read that reads from it, and on through
///                        read-modify-writes
///     synchronises       the first operation of a release pattern with the last of an acquire
///                        pattern, if the write of one is observed by the read of the other and
///                        the two are morally strong; a fence.sc with each later morally strong one
///     base causality     the transitive closure of program order and synchronises
///     causality          base causality, optionally preceded by one observation
///
///     Coherence          causality between writes to a place is part of its coherence order
///     Fence-SC           the order of morally strong fence.sc does not contradict causality
///     Atomicity          no morally strong write comes between the two halves of an update
///     SC per location    program order at a place and morally strong communication have no cycle
///     Causality          no read reads a write that follows it, or one that is hidden by a later
///                        write that precedes the read
///
/// See also Lustig, Sahasrabuddhe and Giroux, "A Formal Analysis of the NVIDIA PTX Memory
/// Consistency Model", ASPLOS 2019.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "simulation/litmus_program.hpp"

namespace tokenyard::litmus {

struct Verdict {
  std::set<Outcome> allowed;
  /// Outcomes of executions without a cycle of program order, reads and the order of fence.sc, so
  /// without load buffering. A machine that runs threads in program order can show exactly these.
  std::set<Outcome> reachable;
  bool always_races = true;  ///< every execution has a conflict that is neither ordered nor strong
  bool never_races = true;
};

/// A relation between the events of an execution.
class Relation {
 public:
  static constexpr size_t kEventsMax = 24;
  bool has(size_t a, size_t b) const { return (rows_[a] >> b & 1) != 0; }
  void add(size_t a, size_t b) { rows_[a] |= 1u << b; }
  void add(const Relation& other) {
    for (size_t a = 0; a < kEventsMax; ++a) rows_[a] |= other.rows_[a];
  }
  Relation closed() const {
    Relation result = *this;
    for (size_t middle = 0; middle < kEventsMax; ++middle)
      for (size_t a = 0; a < kEventsMax; ++a)
        if (result.has(a, middle)) result.rows_[a] |= result.rows_[middle];
    return result;
  }
  Relation then(const Relation& next) const {
    Relation result;
    for (size_t a = 0; a < kEventsMax; ++a)
      for (size_t middle = 0; middle < kEventsMax; ++middle)
        if (has(a, middle)) result.rows_[a] |= next.rows_[middle];
    return result;
  }
  bool cyclic() const {
    const Relation all = closed();
    for (size_t a = 0; a < kEventsMax; ++a)
      if (all.has(a, a)) return true;
    return false;
  }

 private:
  std::array<uint32_t, kEventsMax> rows_{};
};

class Judge {
 public:
  explicit Judge(const Program& program) : program_(program) {
    for (uint32_t place = 0; place < program.places; ++place)
      events_.push_back({-1, {Kind::write, place, 0}});
    for (size_t thread = 0; thread < program.threads.size(); ++thread)
      for (const Operation& operation : program.threads[thread].operations)
        events_.push_back({static_cast<int>(thread), operation});
    source_.assign(events_.size(), 0);
    order_static();
  }

  Verdict judge() {
    choose_source(0);
    return verdict_;
  }

 private:
  struct Event {
    int thread;  ///< -1: the initial value of a place
    Operation operation;
  };

  const Operation& op(size_t event) const { return events_[event].operation; }
  bool initial(size_t event) const { return events_[event].thread < 0; }
  bool same_place(size_t a, size_t b) const {
    return !op(a).fences() && !op(b).fences() && op(a).place == op(b).place;
  }

  bool includes(size_t a, size_t b) const {
    const Thread& from = program_.threads[static_cast<size_t>(events_[a].thread)];
    const Thread& to = program_.threads[static_cast<size_t>(events_[b].thread)];
    if (op(a).scope == Scope::sys) return true;
    if (from.rank != to.rank) return false;
    return op(a).scope == Scope::gpu || from.block == to.block;
  }
  bool morally_strong(size_t a, size_t b) const {
    if (initial(a) || initial(b)) return false;
    if (!op(a).fences() && !op(b).fences() && !same_place(a, b)) return false;
    return events_[a].thread == events_[b].thread || (includes(a, b) && includes(b, a));
  }

  void order_static() {
    for (size_t a = 0; a < events_.size(); ++a)
      for (size_t b = 0; b < events_.size(); ++b) {
        if (initial(a) && !initial(b)) before_.add(a, b);
        if (!initial(a) && events_[a].thread == events_[b].thread && a < b) before_.add(a, b);
      }
    for (size_t event = 0; event < events_.size(); ++event) {
      if (op(event).kind == Kind::fence_sequential) sequential_.push_back(event);
      if (op(event).writes() && !initial(event)) writes_.push_back(event);
    }
    // Release patterns end in a write, acquire patterns begin with a read.
    for (size_t a = 0; a < events_.size(); ++a)
      for (size_t b = 0; b < events_.size(); ++b) {
        if (initial(a) || initial(b) || (a != b && !before_.has(a, b))) continue;
        const bool here = a == b || same_place(a, b);
        if (op(b).writes() && op(a).releases() && (here || op(a).fences()))
          release_patterns_.push_back({a, b});
        if (op(a).reads() && op(b).acquires() && (here || op(b).fences()))
          acquire_patterns_.push_back({a, b});
      }
  }

  void choose_source(size_t event) {
    while (event < events_.size() && (initial(event) || !op(event).reads())) ++event;
    if (event == events_.size()) {
      choose_coherence();
      return;
    }
    for (size_t write = 0; write < events_.size(); ++write) {
      if (write == event || !op(write).writes() || !same_place(write, event)) continue;
      source_[event] = write;
      choose_source(event + 1);
    }
  }

  /// Enumerates the orders of all writes, and so each place's coherence orders. Orders that differ
  /// only between places are repeated, which is harmless.
  void choose_coherence() {
    std::vector<size_t> writes = writes_;
    std::sort(writes.begin(), writes.end());
    do {
      Relation coherence;
      for (size_t a = 0; a < events_.size(); ++a) {
        if (!initial(a)) continue;
        for (const size_t b : writes)
          if (same_place(a, b)) coherence.add(a, b);
      }
      for (size_t a = 0; a < writes.size(); ++a)
        for (size_t b = a + 1; b < writes.size(); ++b)
          if (same_place(writes[a], writes[b])) coherence.add(writes[a], writes[b]);
      std::vector<size_t> sequential = sequential_;
      do {
        execution(coherence, sequential);
      } while (std::next_permutation(sequential.begin(), sequential.end()));
    } while (std::next_permutation(writes.begin(), writes.end()));
  }

  void execution(const Relation& coherence, const std::vector<size_t>& sequential) {
    Relation reads_from, from_read, observed;
    for (size_t read = 0; read < events_.size(); ++read) {
      if (initial(read) || !op(read).reads()) continue;
      reads_from.add(source_[read], read);
      if (morally_strong(source_[read], read)) observed.add(source_[read], read);
      for (const size_t write : writes_)
        if (write != read && same_place(read, write) && coherence.has(source_[read], write))
          from_read.add(read, write);
    }
    observed = observed.closed();  // Chains only through updates, which both read and write.

    Relation synchronises;
    for (const auto& [first, write] : release_patterns_)
      for (const auto& [read, last] : acquire_patterns_)
        if (observed.has(write, read) && morally_strong(first, last)) synchronises.add(first, last);
    for (size_t a = 0; a < sequential.size(); ++a)
      for (size_t b = a + 1; b < sequential.size(); ++b)
        if (morally_strong(sequential[a], sequential[b]))
          synchronises.add(sequential[a], sequential[b]);
    Relation base = before_;
    base.add(synchronises);
    base = base.closed();
    Relation causality = base;
    causality.add(observed.then(base));
    Relation communication = coherence;
    communication.add(reads_from);
    communication.add(from_read);

    if (!consistent(coherence, reads_from, from_read, communication, causality, sequential)) return;
    Outcome outcome;
    for (size_t event = 0; event < events_.size(); ++event)
      if (!initial(event) && op(event).reads()) outcome.push_back(op(source_[event]).value);
    for (uint32_t place = 0; place < program_.places; ++place) {
      size_t last = place;
      for (const size_t write : writes_)
        if (op(write).place == place && (last == place || coherence.has(last, write))) last = write;
      outcome.push_back(op(last).value);
    }
    Relation dependence = before_;
    dependence.add(reads_from);
    for (size_t a = 0; a < sequential.size(); ++a)
      for (size_t b = a + 1; b < sequential.size(); ++b)
        if (morally_strong(sequential[a], sequential[b]))
          dependence.add(sequential[a], sequential[b]);
    verdict_.allowed.insert(outcome);
    if (!dependence.cyclic()) {
      verdict_.reachable.insert(outcome);
      bool races = false;
      for (size_t a = 0; a < events_.size(); ++a)
        for (size_t b = a + 1; b < events_.size(); ++b)
          races |= !initial(a) && same_place(a, b) && (op(a).writes() || op(b).writes()) &&
                   !morally_strong(a, b) && !base.has(a, b) && !base.has(b, a);
      verdict_.always_races &= races;
      verdict_.never_races &= !races;
    }
  }

  bool consistent(const Relation& coherence, const Relation& reads_from, const Relation& from_read,
                  const Relation& communication, const Relation& causality,
                  const std::vector<size_t>& sequential) const {
    Relation at_one_place;
    for (size_t a = 0; a < events_.size(); ++a)
      for (size_t b = 0; b < events_.size(); ++b) {
        if (a == b || !same_place(a, b)) {
          // Fence-SC.
          if (causality.has(a, b) && morally_strong(a, b) && op(a).kind == Kind::fence_sequential &&
              op(b).kind == Kind::fence_sequential &&
              std::find(sequential.begin(), sequential.end(), a) >
                  std::find(sequential.begin(), sequential.end(), b))
            return false;
          continue;
        }
        // Coherence, then Causality's first half.
        if (op(a).writes() && op(b).writes() && causality.has(a, b) && !coherence.has(a, b))
          return false;
        if (reads_from.has(b, a) && causality.has(a, b)) return false;
        // Atomicity.
        if (op(a).kind == Kind::exchange && morally_strong(a, b) && from_read.has(a, b) &&
            coherence.has(b, a))
          return false;
        if (before_.has(a, b) && !initial(a)) at_one_place.add(a, b);
        if (communication.has(a, b) && (morally_strong(a, b) || initial(a))) at_one_place.add(a, b);
      }
    if (at_one_place.cyclic()) return false;
    // Causality's second half: a write that precedes a read hides all older writes from it.
    for (size_t read = 0; read < events_.size(); ++read) {
      if (initial(read) || !op(read).reads()) continue;
      for (const size_t write : writes_)
        if (write != read && same_place(write, read) && causality.has(write, read) &&
            coherence.has(source_[read], write))
          return false;
    }
    return true;
  }

  const Program& program_;
  std::vector<Event> events_;
  Relation before_;  ///< program order, with the initial values before everything
  std::vector<size_t> sequential_, writes_;
  std::vector<std::pair<size_t, size_t>> release_patterns_, acquire_patterns_;
  std::vector<size_t> source_;  ///< [events] the write that each read reads from
  Verdict verdict_;
};

/// Judges every execution of the program.
inline Verdict judge(const Program& program) {
  return Judge(program).judge();
}

}  // namespace tokenyard::litmus
