#include "megakernel/proofs/access_watch.hpp"

#include <fmt/format.h>

#include "megakernel/proofs/triggers.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {

namespace {

AccessKind access_of(TouchKind kind) {
  switch (kind) {
    case TouchKind::read:
      return AccessKind::read;
    case TouchKind::write:
      return AccessKind::write;
    case TouchKind::modify:
      return AccessKind::add;
  }
  return AccessKind::write;
}

}  // namespace

std::exception_ptr AccessWatch::judge(uint32_t part, const void* at, uint32_t bytes,
                                      TouchKind kind) const {
  // A rank without tasks has one packet, which is never run.
  if (part >= graph_.tasks().size()) return nullptr;
  const auto begin = reinterpret_cast<uint64_t>(at);
  const AccessKind access = access_of(kind);
  const auto fault = declared_.fault(part, begin, begin + bytes, access);
  if (!fault) return nullptr;
  return std::make_exception_ptr(InvalidGraph(
      GraphFault::undeclared_access,
      {task_name(graph_, part), fmt::format("{} {}", verb(access), fault->where),
       "in its body, without declaring it"},
      fmt::format("regions that cover all memory that '{}' touches, and indices in its memory that "
                  "stay within them",
                  graph_.tasks()[part].name)));
}

}  // namespace tokenyard::megakernel
