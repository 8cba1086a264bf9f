/// The published shapes of litmus tests, under their names in the literature (Alglave, Maranget and
/// Tautschnig, "Herding Cats", TOPLAS 2014; the PTX versions are in Dartagnan's collection), and
/// functions that fill them in.
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "simulation/litmus_program.hpp"
#include "simulation/random.hpp"

namespace tokenyard::litmus {

inline constexpr uint32_t kX = 0, kY = 1, kZ = 2;

inline Operation write(uint32_t place, uint32_t value) {
  return {Kind::write, place, value};
}
inline Operation read(uint32_t place) {
  return {Kind::read, place};
}
inline Operation update(uint32_t place, uint32_t value) {
  return {Kind::exchange, place, value};
}

inline Program shape(std::string name, uint32_t places,
                     std::vector<std::vector<Operation>> threads) {
  Program program{std::move(name), places, {}};
  for (auto& operations : threads) program.threads.push_back({0, 0, std::move(operations)});
  return program;
}

inline const std::vector<Program>& shapes() {
  static const std::vector<Program> list = {
      shape("MP", 2, {{write(kX, 1), write(kY, 1)}, {read(kY), read(kX)}}),
      shape("SB", 2, {{write(kX, 1), read(kY)}, {write(kY, 1), read(kX)}}),
      shape("2+2W", 2, {{write(kX, 1), write(kY, 2)}, {write(kY, 1), write(kX, 2)}}),
      shape("R", 2, {{write(kX, 1), write(kY, 1)}, {write(kY, 2), read(kX)}}),
      shape("S", 2, {{write(kX, 2), write(kY, 1)}, {read(kY), write(kX, 1)}}),
      shape("LB", 2, {{read(kX), write(kY, 1)}, {read(kY), write(kX, 1)}}),
      shape("WRC", 2, {{write(kX, 1)}, {read(kX), write(kY, 1)}, {read(kY), read(kX)}}),
      shape("IRIW", 2,
            {{write(kX, 1)}, {write(kY, 1)}, {read(kX), read(kY)}, {read(kY), read(kX)}}),
      shape("ISA2", 3,
            {{write(kX, 1), write(kY, 1)}, {read(kY), write(kZ, 1)}, {read(kZ), read(kX)}}),
      shape("CoRR", 1, {{write(kX, 1)}, {read(kX), read(kX)}}),
      shape("CoWR", 1, {{write(kX, 1), read(kX)}, {write(kX, 2)}}),
      shape("MP+RMW", 2, {{write(kX, 1), write(kY, 1)}, {update(kY, 2)}, {read(kY), read(kX)}}),
      shape("MP+chain", 2,
            {{write(kX, 1), write(kY, 1), write(kY, 2)}, {read(kY), read(kY), read(kX)}}),
      shape("SB+RMW", 2, {{update(kX, 1), read(kY)}, {update(kY, 1), read(kX)}}),
      shape("RMW+RMW", 1, {{update(kX, 1)}, {update(kX, 2)}, {write(kX, 3), read(kX)}}),
  };
  return list;
}

/// Draws each operation's order and scope, fences between operations, and the threads' places. Half
/// of the programs have only sys scopes, so that many programs do not race.
inline Program fill(const Program& empty, simulation::Random& random) {
  Program program = empty;
  const bool wide = random.chance(512);
  const bool fenced = random.chance(512);
  const auto scope = [&] { return wide ? Scope::sys : static_cast<Scope>(random.below(3)); };
  for (Thread& thread : program.threads) {
    thread.rank = random.below(2);
    thread.block = random.below(2);
    std::vector<Operation> operations;
    for (Operation operation : thread.operations) {
      constexpr std::array kFences{Order::acquire, Order::release, Order::acq_rel, Order::acq_rel};
      if (!operations.empty() && fenced && random.chance(700))
        operations.push_back({random.chance(512) ? Kind::fence : Kind::fence_sequential, 0, 0,
                              kFences[random.below(4)], scope()});
      constexpr std::array kReads{Order::relaxed, Order::acquire};
      constexpr std::array kWrites{Order::relaxed, Order::release};
      constexpr std::array kUpdates{Order::relaxed, Order::acquire, Order::release, Order::acq_rel};
      if (operation.kind == Kind::exchange)
        operation.order = kUpdates[random.below(4)];
      else
        operation.order = (operation.writes() ? kWrites : kReads)[random.below(2)];
      operation.scope = scope();
      operations.push_back(operation);
    }
    thread.operations = std::move(operations);
  }
  return program;
}

/// Returns a small random program of no published shape.
inline Program invent(simulation::Random& random) {
  Program program{"random", 2, {}};
  uint32_t value = 0;
  for (uint32_t threads = random.between(2, 3); threads > 0; --threads) {
    std::vector<Operation> operations;
    for (uint32_t count = random.between(1, 3); count > 0; --count) {
      const uint32_t place = random.below(2);
      switch (random.below(5)) {
        case 0:
        case 1:
          operations.push_back(read(place));
          break;
        case 2:
          operations.push_back(value < 4 ? update(place, ++value) : read(place));
          break;
        default:
          operations.push_back(value < 4 ? write(place, ++value) : read(place));
          break;
      }
    }
    program.threads.push_back({0, 0, std::move(operations)});
  }
  return program;
}

inline std::string name(Order order) {
  constexpr std::array kNames{"weak", "relaxed", "acquire", "release", "acq_rel"};
  return kNames[static_cast<size_t>(order)];
}
inline std::string name(Scope scope) {
  constexpr std::array kNames{"block", "gpu", "sys"};
  return kNames[static_cast<size_t>(scope)];
}

inline std::string text(const Operation& operation) {
  const auto where = fmt::format("{}", "xyz"[operation.place]);
  const std::string how = name(operation.order) + "." + name(operation.scope);
  switch (operation.kind) {
    case Kind::read:
      return fmt::format("load.{} {}", how, where);
    case Kind::write:
      return fmt::format("store.{} {} = {}", how, where, operation.value);
    case Kind::exchange:
      return fmt::format("exchange.{} {} = {}", how, where, operation.value);
    case Kind::fence:
      return "fence." + how;
    case Kind::fence_sequential:
      return "fence.sc." + name(operation.scope);
  }
  return "?";
}

inline std::string text(const Program& program) {
  std::string result = program.name;
  for (const Thread& thread : program.threads) {
    result += fmt::format("\n    rank {} block {}:", thread.rank, thread.block);
    for (const Operation& operation : thread.operations) result += " " + text(operation) + ";";
  }
  return result;
}

/// Returns the outcome as "y = 1, x = 0, at the end x = 1 y = 1".
inline std::string text(const Program& program, const Outcome& outcome) {
  std::string result;
  size_t next = 0;
  for (const Thread& thread : program.threads)
    for (const Operation& operation : thread.operations)
      if (operation.reads())
        result += fmt::format("{} = {}, ", "xyz"[operation.place], outcome[next++]);
  result += "at the end";
  for (uint32_t place = 0; place < program.places; ++place)
    result += fmt::format(" {} = {}", "xyz"[place], outcome[next++]);
  return result;
}

}  // namespace tokenyard::litmus
