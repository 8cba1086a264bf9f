/// Connects the processes of a job to its network, its witness and the checkers, and handles kills.
/// Part of job.hpp.
#pragma once

#include "collectives/simulated/job.hpp"

namespace tokenyard::collectives::simulated {

inline View Job::first_view(const JobOptions& options) {
  View view{.epoch = 1, .slots = options.ranks};
  for (Slot slot = 0; slot < options.ranks; ++slot) view.members.push_back({slot, slot + 1});
  return view;
}

inline Job::Job(const JobOptions& options, uint64_t seed, simulation::Trace& trace,
                MakeProgram make_program)
    : options(options),
      random(seed),
      trace(trace),
      network(schedule,
              [this](ProcessId from, ProcessId) {
                return this->options.delay_least + some(delay_most) + slowness[from];
              }),
      delay_most(options.delay_most),
      think_most(options.think_most),
      freeze_most(options.freeze_most),
      witness_most(options.witness_most),
      witness(seed ^ 0x51073e),
      agreement(first_view(options)),
      majority(options.membership.witness),
      admission(first_view(options)),
      blame(make_program != nullptr),  // the stand-in gives waiting ranks no head start
      innocence(options.membership.evict_stalled, options.yields_slot),
      make_program_(std::move(make_program)) {
  const View first = first_view(options);
  for (const Member& member : first.members) {
    Process& process = add(member, first);
    std::vector<Slot> world;
    for (Slot slot = 0; slot < std::max(options.ranks, options.slots_max); ++slot)
      world.push_back(slot);
    process.engine->add_group(0, world);
    for (size_t i = 0; i < options.groups.size(); ++i)
      process.engine->add_group(i + 1, options.groups[i]);
    process.engine->install({.next = first}, {});
    poke_all(process);
  }
}

inline Process& Job::add(Member self, const View& first) {
  const auto id = static_cast<ProcessId>(processes.size());
  slowness.push_back({});
  // Called only after the object is in its final place.
  const auto process = [this, id]() -> Process& { return *processes[id]; };
  processes.push_back(std::make_unique<Process>(
      id, self, first, options.membership, schedule, some(std::chrono::hours(1)),
      Process::Outside{
          .send = [=, this](const membership::Send& sent) { send(process(), sent); },
          .ask_witness = [=,
                          this](const membership::AskWitness& ask) { ask_witness(process(), ask); },
          .install = [=, this](const Verdict& verdict) { install(process(), verdict); },
          .freeze = [=, this] { freeze(process()); },
          .over =
              [=, this](const char* what, Epoch epoch) {
                trace.event(what, process().self.slot, 0, epoch, process().self.incarnation);
                schedule.at(schedule.now(), [=, this] { hang_up(process()); });
              }}));
  Process& added = *processes.back();
  added.engine = make_program(
      added,
      {.committed =
           [=, this](GroupId group, Sequence sequence, const View& view,
                     const std::vector<Slot>& active, int64_t result) {
             trace.event("commit", process().self.slot, static_cast<uint32_t>(group), view.epoch,
                         sequence);
             commits.committed(process().self, group, sequence, view, active, result);
             poke(process(), group);
             if (parting.erase(process().self) > 0)
               schedule.at(schedule.now(), [=, this] { leave(process()); });
           },
       .aborted =
           [=, this](GroupId group, Sequence sequence, int64_t left) {
             trace.event("abort", process().self.slot, static_cast<uint32_t>(group), 0, sequence);
             commits.aborted(process().self, group, sequence, left);
           },
       .missed = [=, this](GroupId group,
                           Sequence sequence) { commits.missed(process().self, group, sequence); },
       .timed_out =
           [=, this](GroupId group, Sequence sequence, Epoch after, bool by_itself) {
             trace.event("timeout", process().self.slot, static_cast<uint32_t>(group), by_itself,
                         sequence);
             news.timed_out(process().self, group, sequence, after, by_itself);
             spread_the_news(process());
           }});
  by_member_[self] = &added;
  schedule.at(schedule.now(),
              [&added] { added.input([&added] { added.runtime.tick(added.now()); }); });
  return added;
}

inline Process& Job::spawn(Slot slot, const Process& by) {
  Process& process = add({slot, ++incarnations_}, by.runtime.view());
  process.waits_since = schedule.now();
  trace.event("spawn", slot, 0, 0, process.self.incarnation);
  return process;
}

inline void Job::send(Process& from, const membership::Send& sent) {
  Process* const to = of(sent.to);
  expect(to != nullptr, "a message to somebody who never was");
  membership::Message message = sent.message;
  if (options.through_codec) {
    std::optional<membership::Message> read = membership::decode_message(encode(message));
    expect(read.has_value(), "the codec refuses what it has written");
    message = std::move(*read);
  }
  network.send(
      from.id, to->id, kControl, [this, to, sender = from.self, message = std::move(message)] {
        trace.event("message", to->self.slot, sender.slot, message.epoch, message.body.index());
        to->input([=] { to->runtime.receive(sender, message, to->now()); });
      });
}

inline std::unique_ptr<Program> Job::stand_in(Process& process, Program::Watcher watcher) {
  return std::make_unique<Operations>(
      process.self, options.operations, std::move(watcher), [this, &process] { recover(process); },
      [this, &process](Slot slot, Frame frame) {
        Process* const to = of(*process.engine->view().at(slot));
        network.send(
            process.id, to->id, stream_of(frame.group), [to, from = process.self.slot, frame] {
              to->input([=] { static_cast<Operations&>(*to->engine).receive(from, frame); });
            });
      });
}

/// Asks one question at a time, as `control` does: while one is under way, only the newest waits.
inline void Job::ask_witness(Process& from, const membership::AskWitness& ask) {
  Client& client = clients_[from.id];
  client.question = ask.message;
  if (!client.busy) go_to_witness(from);
}

inline void Job::go_to_witness(Process& from) {
  Client& client = clients_[from.id];
  client.busy = client.question.has_value();
  if (!client.busy) return;
  client.asked.emplace(*std::exchange(client.question, {}), options.membership.mutant);
  const Instant read = schedule.now() + some(witness_most);
  const Instant answered = read + some(witness_most);
  schedule.at(read, [this, &from, answered] {
    if (!witness_is_reached(from)) return end_question(from, answered, {});
    witness_holds(from, witness.read(schedule.now()), answered);
  });
}

inline void Job::witness_holds(Process& from, std::optional<WitnessStore::Value> held,
                               Instant end) {
  membership::WitnessQuestion& asked = *clients_[from.id].asked;
  const auto desired = asked.next(std::move(held));
  if (!desired) {
    if (asked.reply())
      trace.event("witness", from.self.slot, static_cast<uint32_t>(asked.reply()->body.index()),
                  asked.reply()->epoch, witness.races);
    return end_question(from, end, asked.reply());
  }
  // Others ask meanwhile.
  const Instant written = schedule.now() + witness.some(std::max(end - schedule.now(), Instant(1)));
  schedule.at(written, [this, &from, end, desired = *desired] {
    if (!witness_is_reached(from)) return end_question(from, end, {});
    WitnessStore::Value now =
        witness.compare_and_set(clients_[from.id].asked->expected(), desired, schedule.now());
    if (witness.loses()) return end_question(from, end, {});
    witness_holds(from, std::move(now), std::max(end, schedule.now() + witness.some(witness_most)));
  });
}

inline bool Job::witness_is_reached(const Process& from) {
  return !witness_dead && from.alive() && !witness.loses();
}

inline void Job::end_question(Process& from, Instant when,
                              const std::optional<membership::Message>& reply) {
  schedule.at(std::max(when, schedule.now()), [this, &from, reply] {
    if (reply) from.input([&from, reply] { from.runtime.witness_replied(*reply, from.now()); });
    go_to_witness(from);
  });
}

inline void Job::freeze(Process& process) {
  const auto stop = [this, &process] {
    if (process.over()) return;
    std::vector<GroupProgress> progress = process.engine->freeze(process.runtime.view().epoch);
    commits.frozen(process.self, progress);
    process.runtime.frozen(std::move(progress), process.now());
  };
  schedule.at(schedule.now() + some(freeze_most), [&process, stop] { process.input(stop); });
}

inline void Job::install(Process& process, const Verdict& verdict) {
  const Epoch before = process.engine->view().epoch;
  trace.event("install", process.self.slot, static_cast<uint32_t>(verdict.next.members.size()),
              verdict.next.epoch, process.self.incarnation);
  const bool is_new = !agreement.verdicts().contains(verdict.next.epoch);
  agreement.installed(process.self, before, verdict);
  if (is_new && std::exchange(kills_next_decider, false))
    schedule.at(schedule.now(), [this, &process] { kill(process); });
  if (is_new) {
    const View& ended = agreement.views().at(verdict.next.epoch - 1);
    majority.decided(ended, verdict);
    admission.decided(ended, verdict);
    recovering.decided(ended, verdict);
    innocence.decided(ended, verdict);
    commits.decided(ended, verdict);
    if (options.only_stuck_are_blamed) blame.decided(verdict, schedule.now());
  }
  if (before != 0) commits.before_install(process.self, process.engine->progress(), verdict);
  process.engine->install(verdict, {});
  commits.after_install(process.self, before == 0, process.engine->progress(), verdict);
  poke_all(process);
  if (!options.operations.only_full) return;
  for (Slot slot = 0; slot < options.ranks; ++slot) {
    if (!verdict.next.at(slot)) {
      admission.wished(slot);
      process.runtime.admit({slot}, verdict.next.epoch, process.now());
    }
  }
  schedule.at(schedule.now(), [&process] { process.input([] {}); });
}

inline void Job::poke(Process& process, GroupId group) {
  const Instant when = std::max(schedule.now() + some(think_most), process.stuck_until);
  schedule.at(when, [this, &process, group] {
    process.input([this, &process, group] { begin(process, group); });
  });
}

inline void Job::begin(Process& process, GroupId group) {
  if (schedule.now() < process.stuck_until || !process.engine->begin(group)) return;
  const Sequence sequence = process.engine->begun(group);
  const Epoch epoch = process.engine->view().epoch;
  if (!process.engine->running(group)) return;
  schedule.at(schedule.now() + options.deadline, [&process, group, sequence, epoch] {
    process.input([&process, group, sequence, epoch] {
      if (process.engine->view().epoch != epoch) return;
      for (const Slot slot : process.engine->waiting_for(group, sequence))
        process.runtime.report_timeout({.slot = slot, .group = group, .sequence = sequence}, epoch,
                                       process.now());
    });
  });
}

inline void Job::kill(Process& process, bool noticed) {
  trace.event("kill", process.self.slot, 0, 0, process.self.incarnation);
  innocence.touched(process.self);
  process.kill();
  for (const auto& other : processes) {
    if (other.get() == &process) continue;
    const Instant end = schedule.now() + some(delay_most * 2);
    const bool is_cut = network.is_cut(process.id, other->id);
    network.lose(process.id, other->id, end, [this] { return some(delay_most); });
    if (!noticed || is_cut) continue;
    notice_the_end(*other, process.self, end);
    schedule.at(end, [&other = *other, gone = process.self] {
      other.input([&other, gone] { other.engine->link_ended(gone); });
    });
  }
}

/// The last messages of a process that left still arrive; but others may not know yet how its epoch
/// ended, and learn it from elsewhere.
inline void Job::hang_up(Process& process) {
  for (const auto& other : processes) {
    if (other.get() == &process || network.is_cut(process.id, other->id)) continue;
    notice_the_end(*other, process.self, schedule.now() + some(delay_most * 2));
  }
}

inline void Job::notice_the_end(Process& peer, const Member& gone, Instant when) {
  schedule.at(when, [&peer, gone] {
    peer.input([&peer, gone] {
      if (peer.runtime.view().contains(gone))
        peer.runtime.suspect(gone.slot, Suspicion::reset, peer.runtime.view().epoch, peer.now());
    });
  });
}

}  // namespace tokenyard::collectives::simulated
