#include "simulation/finding.hpp"

#include <fmt/format.h>

namespace tokenyard::simulation {
namespace {

const char* name(Order order) {
  switch (order) {
    case Order::weak:
      return "weak";
    case Order::relaxed:
      return "relaxed";
    case Order::acquire:
      return "acquire";
    case Order::release:
      return "release";
    case Order::acq_rel:
      return "acq_rel";
  }
  return "?";
}

const char* name(Scope scope) {
  switch (scope) {
    case Scope::block:
      return "block";
    case Scope::gpu:
      return "gpu";
    case Scope::sys:
      return "sys";
  }
  return "?";
}

std::string name(const Access& access) {
  switch (access.kind) {
    case AccessKind::plain_read:
      return "ordinary load";
    case AccessKind::plain_write:
      return "ordinary store";
    case AccessKind::weak_read:
      return "weak load";
    case AccessKind::weak_write:
      return "weak store";
    case AccessKind::strong_read:
      return fmt::format("{} load, {} scope,", name(access.order), name(access.scope));
    case AccessKind::strong_write:
      return fmt::format("{} store, {} scope,", name(access.order), name(access.scope));
    case AccessKind::bulk_read:
      return "bulk copy's read";
    case AccessKind::bulk_write:
      return "bulk copy's write";
  }
  return "?";
}

const char* explain(RaceReason reason) {
  switch (reason) {
    case RaceReason::unordered:
      return "no chain of releases, acquires and barriers orders them";
    case RaceReason::scope:
      return "the scope of one does not include the other thread";
    case RaceReason::proxy:
      return "they are ordered, but with no fence_async on the way";
  }
  return "?";
}

}  // namespace

std::string Finding::text(const SourceLines& lines) const {
  std::string text = title;
  for (const Part& part : parts) {
    text += "\n    " + part.text;
    if (part.where != nullptr) text += " at " + lines(part.where);
  }
  return text;
}

Finding::Part Findings::part(const Access& access) const {
  return {fmt::format("{} by {}", name(access), simulation::describe(actors_[access.actor])),
          access.where};
}

void Findings::found(const Race& race) {
  if (list_.size() >= kFindingsMax) return;
  if (!seen_races_.insert({race.earlier.where, race.later.where, race.reason}).second) return;
  list_.push_back({fmt::format("race on {} bytes of {}: {}", race.bytes,
                               regions_.describe(race.address), explain(race.reason)),
                   {part(race.earlier), part(race.later)}});
}

void Findings::misuse(std::string title, const Actor& who, CodeAddress where) {
  if (list_.size() >= kFindingsMax) return;
  if (!seen_misuses_.insert({title, where}).second) return;
  list_.push_back({"misuse: " + std::move(title), {{"by " + describe(who), where}}});
}

}  // namespace tokenyard::simulation
