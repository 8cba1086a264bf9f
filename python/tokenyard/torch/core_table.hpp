/// The binary interface between torch's backend and the module `_tokenyard`.
///
/// The backend is compiled on the user's machine against the user's torch, the module elsewhere and
/// earlier. So they share no class and no library, only these plain structs and functions, whose
/// layout is the same for every compiler, passed in Python capsules.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tokenyard::core {

/// Increment it with every change of this file; both sides compare it.
inline constexpr uint32_t kTableVersion = 4;
inline constexpr char kTableCapsule[] = "tokenyard.core_table";
inline constexpr char kGroupCapsule[] = "tokenyard.group";
inline constexpr char kDeviceCapsule[] = "tokenyard.device";
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
  float8_e4m3fn,  ///< reduced on devices only
  float8_e5m2,    ///< the same
};

/// In the order of tokenyard::ReduceOp.
enum class Reduction : uint8_t { sum, average, product, min, max, bit_and, bit_or, bit_xor };

enum class Kind : uint8_t {
  all_reduce,  ///< `out`: any number of arrays, in place
  reduce,      ///< `out`: one, in place
  broadcast,   ///< `out`: one, in place
  all_gather,
  gather,          ///< `out`: empty except on the root
  scatter,         ///< `in`: empty except on the root
  reduce_scatter,  ///< `in`: this rank's addend to each rank's `out`
  all_to_all,
  barrier,
  monitored_barrier,
  send,
  receive,
};

/// Contiguous elements in host memory; inputs are only read.
struct Array {
  void* data;
  uint64_t elements;
  Type type;
};

struct Operation {
  Kind kind;
  Reduction reduction;
  uint8_t algorithm;  ///< tokenyard::Algorithm
  bool from_anybody;  ///< receive from any rank, whatever `peer` is
  uint32_t peer;      ///< the root, or the other rank
  uint64_t tag;
  int64_t timeout_ns;  ///< below 0: the group's
  const Array* in;
  uint64_t ins;
  const Array* out;
  uint64_t outs;
};

/// A collective call on device tensors. `sent`, `received`: null, or elements per rank: of an
/// all_to_all; of an all_gather and a reduce_scatter both are the same.
struct DeviceCall {
  Kind kind;
  Reduction reduction;
  Type type;
  double factor;
  uint32_t root;
  const void* in;  ///< null where this rank has none
  uint64_t in_elements;
  void* out;  ///< null where this rank has none
  uint64_t out_elements;
  const uint64_t* sent;
  const uint64_t* received;
  uint64_t stream;
  int64_t timeout_ns;
};

/// A message on device tensors, of a batch.
struct DeviceMessage {
  void* data;
  uint64_t elements;
  Type type;
  bool receives;
  uint32_t peer;
  uint32_t tag;
};

/// An operation in progress, a group, collectives on device tensors, a call of these, and an
/// exception; the holder drops each.
struct Work;
struct Group;
struct Device;
struct DeviceTicket;
struct Failure;

struct Table {
  uint32_t version;

  /// Starts an operation. Returns null if that failed, with `failure` set. The arrays must live
  /// until the work is done.
  Work* (*submit)(Group* group, const Operation* operation, Failure** failure);
  Group* (*share_group)(Group* group);
  void (*drop_group)(Group* group);

  Work* (*share_work)(Work* work);
  void (*drop_work)(Work* work);
  /// Waits. Returns 1 if done; 0 if not within `timeout_ns` (below 0: only the operation's own
  /// deadline); -1 if it failed.
  int (*wait)(Work* work, int64_t timeout_ns, Failure** failure);
  bool (*done)(Work* work);
  /// Returns the error; null while it is in progress, and after success.
  Failure* (*failure_of)(Work* work);
  /// Calls once when it has ended, on any thread.
  void (*when_done)(Work* work, void (*call)(void* context), void* context);
  uint32_t (*source)(Work* work);
  /// Returns the number of parts that lists have now.
  uint32_t (*parts)(Group* group);
  /// Calls `take` with each rank that is missing from the result.
  void (*failed_ranks)(Work* work, void (*take)(void* taker, uint32_t rank), void* taker);

  Device* (*share_device)(Device* device);
  void (*drop_device)(Device* device);
  /// Returns whether the group's membership was changed by a call since the device was made.
  bool (*device_retired)(Device* device);
  /// Enqueues calls, and sets `ticket`. Return null, or why they could not be enqueued.
  Failure* (*device_call)(Device* device, const DeviceCall* call, DeviceTicket** ticket);
  Failure* (*device_exchange)(Device* device, const DeviceMessage* messages, uint64_t count,
                              uint64_t stream, int64_t timeout_ns, DeviceTicket** ticket);
  /// Returns the error of calls, or null: of those that failed, or that came later, or, once ranks
  /// have gone on, that not all of them have finished. `ended`: whether their streams have passed
  /// them.
  Failure* (*device_failure)(DeviceTicket* ticket, bool ended);
  void (*drop_ticket)(DeviceTicket* ticket);

  /// Sets Python's error to the package's exception. Needs the interpreter lock.
  void (*set_python_error)(const Failure* failure);
  void (*drop_failure)(Failure* failure);
};

/// A foreign store, for the control plane. A function returns a value by calling
/// `take(taker, data, bytes)`; a result below 0 is an error, whose message it passes to `take`. Any
/// thread may call.
struct Store {
  using Take = void (*)(void* taker, const void* data, uint64_t bytes);
  struct Bytes {
    const void* data;
    uint64_t size;
  };

  void* context;
  void (*drop)(void* context);
  /// Returns 1 if the key exists, else 0.
  int (*get)(void* context, Bytes key, Take take, void* taker);
  int (*set)(void* context, Bytes key, Bytes value, Take take, void* taker);
  /// Sets `key` if it holds `expected` (null: if it does not exist). Takes its value afterwards.
  int (*compare_and_set)(void* context, Bytes key, const Bytes* expected, Bytes desired, Take take,
                         void* taker);
};

}  // namespace tokenyard::core
