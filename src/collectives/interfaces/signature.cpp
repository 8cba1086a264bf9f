#include "collectives/interfaces/signature.hpp"

#include <fmt/format.h>

#include "base/fnv1a.hpp"

namespace tokenyard::collectives {

std::string name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::barrier:
      return "barrier";
    case OperationKind::monitored_barrier:
      return "monitored_barrier";
    case OperationKind::all_reduce:
      return "all_reduce";
    case OperationKind::reduce:
      return "reduce";
    case OperationKind::broadcast:
      return "broadcast";
    case OperationKind::all_gather:
      return "all_gather";
    case OperationKind::gather:
      return "gather";
    case OperationKind::scatter:
      return "scatter";
    case OperationKind::reduce_scatter:
      return "reduce_scatter";
    case OperationKind::all_to_all:
      return "all_to_all";
    case OperationKind::close:
      return "close";
  }
  return fmt::format("OperationKind({})", static_cast<int>(kind));
}

bool is_rooted(OperationKind kind) {
  return kind == OperationKind::reduce || kind == OperationKind::broadcast ||
         kind == OperationKind::gather || kind == OperationKind::scatter;
}

std::string describe(const Signature& signature) {
  const OperationKind kind = signature.kind;
  if (kind == OperationKind::barrier || kind == OperationKind::monitored_barrier ||
      kind == OperationKind::close) {
    return name_of(kind);
  }
  std::string text = name_of(kind) + "(";
  if (kind == OperationKind::all_reduce || kind == OperationKind::reduce ||
      kind == OperationKind::reduce_scatter) {
    text += tokenyard::name_of(signature.op) + ", ";
  }
  text += tokenyard::name_of(signature.type);
  text += signature.elements != 0 ? fmt::format("[{}]", signature.elements) : "";
  if (kind == OperationKind::reduce || kind == OperationKind::broadcast ||
      kind == OperationKind::gather || kind == OperationKind::scatter) {
    text += fmt::format(", root {}", signature.root);
  }
  if (signature.algorithm != Algorithm::automatic) {
    text += ", " + tokenyard::name_of(signature.algorithm);
  }
  text +=
      signature.lengths != 0 ? fmt::format(", lengths #{:04x}", signature.lengths & 0xffff) : "";
  return text + ")";
}

uint64_t fingerprint(std::span<const uint64_t> lengths) {
  return fnv1a(std::as_bytes(lengths)) | 1;  // 0 means that there are no lengths
}

}  // namespace tokenyard::collectives
