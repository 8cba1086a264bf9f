/// What torch's backend calls in the module `_tokenyard`, and what it offers in return.
///
/// The backend is compiled on the user's machine against the user's torch, the module elsewhere and
/// long ago. So they share no class and no library: only these plain structs and functions, which
/// any compiler lays out alike, handed over in Python capsules.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tokenyard::core {

/// Goes up with every change of this file; both sides compare.
inline constexpr uint32_t kTableVersion = 2;
inline constexpr char kTableCapsule[] = "tokenyard.core_table";
inline constexpr char kGroupCapsule[] = "tokenyard.group";
inline constexpr char kStoreCapsule[] = "tokenyard.store";

/// In the order of tokenyard::DataType.
enum class Type : uint8_t {
  boolean,
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  uint64,
  int64,
  float16,
  bfloat16,
  float32,
  float64,
  complex64,
  complex128,
};

/// In the order of tokenyard::ReduceOp.
enum class Reduction : uint8_t { sum, average, product, min, max, bit_and, bit_or, bit_xor };

enum class Kind : uint8_t {
  all_reduce,  ///< `out`: any number of arrays, in place
  reduce,      ///< `out`: one, in place
  broadcast,   ///< `out`: one, in place
  all_gather,
  gather,          ///< `out` is empty but on the root
  scatter,         ///< `in` is empty but on the root
  reduce_scatter,  ///< `in`: what this rank adds to each rank's `out`
  all_to_all,
  barrier,
  monitored_barrier,
  send,
  receive,
};

/// Contiguous elements in host memory; of an `in` only read.
struct Array {
  void* data;
  uint64_t elements;
  Type type;
};

struct Operation {
  Kind kind;
  Reduction reduction;
  uint8_t algorithm;  ///< tokenyard::Algorithm
  bool from_anybody;  ///< of a receive: `peer` does not matter
  uint32_t peer;      ///< the root, or the other rank
  uint64_t tag;
  int64_t timeout_ns;  ///< less than 0: the group's
  const Array* in;
  uint64_t ins;
  const Array* out;
  uint64_t outs;
};

/// An operation under way, a group, and what was thrown: each is the holder's own to drop.
struct Work;
struct Group;
struct Failure;

struct Table {
  uint32_t version;

  /// Null if it failed, with `failure` set. The arrays must live until the work is done.
  Work* (*submit)(Group* group, const Operation* operation, Failure** failure);
  Group* (*share_group)(Group* group);
  void (*drop_group)(Group* group);

  Work* (*share_work)(Work* work);
  void (*drop_work)(Work* work);
  /// 1: done; 0: not within `timeout_ns` (less than 0: no limit of its own); -1: it went wrong.
  int (*wait)(Work* work, int64_t timeout_ns, Failure** failure);
  bool (*done)(Work* work);
  /// Null if it is under way or all went well.
  Failure* (*failure_of)(Work* work);
  /// Calls once, when done, from any thread.
  void (*when_done)(Work* work, void (*call)(void* context), void* context);
  uint32_t (*source)(Work* work);
  /// How many parts lists have now.
  uint32_t (*parts)(Group* group);
  /// Calls `take` with each rank that is missing from what was done.
  void (*failed_ranks)(Work* work, void (*take)(void* taker, uint32_t rank), void* taker);

  /// Sets Python's error, of the package's own class. Needs the interpreter lock.
  void (*set_python_error)(const Failure* failure);
  void (*drop_failure)(Failure* failure);
};

/// A store of somebody else's, for the control plane. A value is handed over by calling
/// `take(taker, data, bytes)` before the function returns; a result below 0 is an error, whose
/// sentence is handed over so. Any thread may call.
struct Store {
  using Take = void (*)(void* taker, const void* data, uint64_t bytes);
  struct Bytes {
    const void* data;
    uint64_t size;
  };

  void* context;
  void (*drop)(void* context);
  /// 1: there is such a key; 0: there is none.
  int (*get)(void* context, Bytes key, Take take, void* taker);
  int (*set)(void* context, Bytes key, Bytes value, Take take, void* taker);
  /// `expected`: null if there must be no such key. Takes what the key holds afterwards.
  int (*compare_and_set)(void* context, Bytes key, const Bytes* expected, Bytes desired, Take take,
                         void* taker);
};

}  // namespace tokenyard::core
