"""The C++ side of the package tokenyard; not meant to be used directly."""

from collections.abc import Callable, Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray
from typing_extensions import CapsuleType


version: str = ...

trace_ranges: bool = ...

def warn_of_leaks(warn: bool) -> None:
    """
    Sets whether objects that outlive the interpreter are reported as leaks.
    """

class NetworkOptions:
    """See tokenyard.NetworkOptions; 0, '' or None: not set."""

    def __init__(self, *, transport: str = ..., interfaces: str = ..., ports: str = ..., connections: int = ..., queues: int = ..., queue_depth: int = ..., timeout_s: float = ..., gpu_memory: bool | None = ..., gid_index: int | None = ..., traffic_class: int | None = ..., service_level: int | None = ..., pkey: str = ..., mtu: int = ..., retry_count: int | None = ..., retry_timeout: int = ...) -> None: ...

class NetworkPath:
    """A connection to a rank of another host."""

    @property
    def rank(self) -> int:
        """The other rank."""

    @property
    def number(self) -> int:
        """Index among the connections to it."""

    @property
    def here(self) -> str:
        """Address of this rank's end."""

    @property
    def there(self) -> str:
        """Address of the other end."""

    @property
    def up(self) -> bool:
        """Whether it carries requests now."""

    @property
    def bytes_sent(self) -> int:
        """Bytes sent since the world was made."""

    @property
    def times_lost(self) -> int:
        """Times that it was given up; its queues went on over others."""

    @property
    def bytes_per_second(self) -> float:
        """Rate as last measured under load; 0 if never."""

class PeerTimes:
    """Times of put and signal to a rank."""

    @property
    def rank(self) -> int:
        """The other rank."""

    @property
    def how(self) -> str:
        """The way to it, as in the topology."""

    @property
    def round_trip_us(self) -> float:
        """
        Microseconds of a put of 8 bytes and its signal, both ways: the median of 64.
        """

    @property
    def bytes_per_second(self) -> float:
        """Rate of puts of 1 MiB from this rank."""

    @property
    def error(self) -> str:
        """Why it could not be measured; empty if it was."""

class PeerReach:
    """The way from this rank to a peer's memory."""

    @property
    def reach(self) -> str:
        """'none', 'self', 'load_store' or 'put_signal'."""

    @property
    def how(self) -> str:
        """The fabric, as text."""

    @property
    def why_not(self) -> str:
        """
        The reason if its memory is not within reach of loads and stores; else empty.
        """

class Topology:
    """The host of each rank, and the way to each rank."""

    @property
    def hosts(self) -> int:
        """Number of hosts."""

    @property
    def host_of(self) -> list[int]:
        """[ranks] host of each rank."""

    @property
    def peers(self) -> list[PeerReach]:
        """[ranks] way to each rank."""

    def __str__(self) -> str:
        """Returns a table of text."""

class Listening:
    """A registered callback; dropping it ends the calls."""

    def stop(self) -> None:
        """Ends the calls."""

class Job:
    """See tokenyard.Job."""

    @staticmethod
    def enter(*, entrance: str, store: str, own_store: object | None, host_store: bool, job: str, secret: str, rank: int, size: int, local_rank: int | None, size_max: int, address: str, host: str, timeout_s: float, silence_s: float, on_failure: str, places: str, eager_limit: int, witness: bool) -> Job: ...

    @property
    def closed(self) -> bool: ...

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def share(self) -> Job:
        """Returns another handle of the job, whose end ends nothing."""

    def world(self, *, device: str, timeout_s: float, arena_bytes: int, network: NetworkOptions, compact: bool = ...) -> World: ...

    def metrics(self) -> dict: ...

    def active_ranks(self) -> list[int]: ...

    def waiting(self) -> list[int]: ...

    def epoch(self) -> int: ...

    def on_change(self, call: Callable) -> Listening: ...

    def shrink(self) -> list[int]: ...

    def replace(self, rank: int, *, timeout_s: float | None) -> None: ...

    def grow(self, ranks: int, *, timeout_s: float | None) -> None: ...

    def recover(self, *, wait_for_replacements: bool, timeout_s: float | None) -> list[int]: ...

    def evict(self, rank: int, *, timeout_s: float | None) -> None: ...

    def leave(self) -> None: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...

    def world_group(self) -> Group: ...

    def group(self, ranks: Sequence[int], name: str, *, timeout_s: float | None, eager_limit: int | None) -> Group: ...

    def counters(self) -> CollectivesCounters: ...

class World:
    """One rank's end of a world; see tokenyard.World."""

    @staticmethod
    def connect(*, host: str, port: int, rank: int, size: int, local_rank: int, job: str, secret: str, device: str, timeout_s: float, rendezvous_s: float, arena_bytes: int, host_name: str, network: NetworkOptions, joins: Sequence[int] = ...) -> World: ...

    @staticmethod
    def in_process(ranks: int, *, device: str, hosts: int, timeout_s: float, arena_bytes: int) -> list[World]: ...

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def timeout_s(self) -> float: ...

    @property
    def device_index(self) -> int | None: ...

    @property
    def closed(self) -> bool: ...

    @property
    def topology(self) -> Topology: ...

    def network_paths(self) -> list[NetworkPath]: ...

    def time_peers(self, *, timeout_s: float) -> list[PeerTimes]: ...

    def job(self) -> Job: ...

    def all_gather(self, mine: bytes, *, what: str) -> list[bytes]: ...

    def barrier(self, *, what: str) -> None: ...

    def cancel(self) -> None: ...

    def goodbye(self) -> Callable[[], None]: ...

    def lost(self) -> list[int]: ...

    def rebuild(self, without: Sequence[int], *, arena_bytes: int) -> World: ...

    def leave_out(self, ranks: Sequence[int]) -> dict[int, int]: ...

    def refill(self, ranks: Sequence[int], *, arena_bytes: int, timeout_s: float) -> World: ...

    @property
    def left_out(self) -> list[int]:
        """
        Ranks that `rebuild` left out to make this world, as they were numbered before.
        """

    @property
    def arena_bytes(self) -> int: ...

    @property
    def users(self) -> int:
        """Number of exchanges and arrays that keep the world alive."""

    def close(self) -> None: ...

def lend_arena(world: World) -> None:
    """
    Makes tokenyard_allocate of this library allocate from this world's arena, for its device.
    """

class Route:
    """The route of a dispatch; see tokenyard.Route."""

    @property
    def tokens(self) -> int: ...

    @property
    def rows_received(self) -> int: ...

    @property
    def row_on(self) -> object:
        """[tokens, ranks] int32."""

class Received:
    """The result of a dispatch; its arrays, in the arena, support DLPack."""

    def record_stream(self, stream: int) -> None: ...

    @property
    def x(self) -> object:
        """[rows, row bytes] uint8."""

    @property
    def scales(self) -> object:
        """[rows, 4 * words] or [words, 4 * stride] uint8, or None."""

    @property
    def type(self) -> DataType: ...

    @property
    def rows_from_on_device(self) -> object:
        """[ranks] int32."""

    @property
    def tokens_per_expert_on_device(self) -> object:
        """[experts of this rank] int32."""

    @property
    def sources_ready(self) -> object:
        """[ranks] int32, or None."""

    @property
    def experts_ready(self) -> object:
        """[experts of this rank] int32, or None."""

    @property
    def topk_idx(self) -> object:
        """[rows, topk] int32."""

    @property
    def topk_weights(self) -> object:
        """[rows, topk] float32."""

    @property
    def source_token(self) -> object:
        """[rows] int32."""

    @property
    def lost(self) -> object:
        """[tokens dispatched here] int32, or None."""

    @property
    def rows_from(self) -> list[int]: ...

    @property
    def tokens_per_expert(self) -> list[int]: ...

    @property
    def route(self) -> Route: ...

class ExpertRows:
    """Received rows by expert; see tokenyard.ExpertRows."""

    def record_stream(self, stream: int) -> None: ...

    def forget_rows(self) -> None: ...

    @property
    def rows(self) -> int: ...

    @property
    def x(self) -> object:
        """[rows, row bytes] uint8, or None."""

    @property
    def scales(self) -> object:
        """[rows, 4 * words] or [words, 4 * stride] uint8, or None."""

    @property
    def offsets(self) -> object:
        """[experts of this rank + 1] int32."""

    @property
    def row_of(self) -> object:
        """[rows] int32."""

    @property
    def weights(self) -> object:
        """[rows] float32."""

    @property
    def row_of_choice(self) -> object:
        """[rows received, topk] int32."""

    @property
    def first_rows(self) -> list[int]: ...

class ScaleOrder(enum.Enum):
    """Layout of received scales."""

    rows = 0

    columns = 1

def spread_lost_experts(expert_at: Sequence[int], living: Sequence[bool]) -> list[int]: ...

class CastToFp8:
    """A cast of bf16 rows to FP8 before they are sent."""

    def __init__(self, scales: CastToFp8.Scales, channels: int) -> None: ...

    class Scales(enum.Enum):
        """Format of a group's scale."""

        none = 0

        fp32 = 1

        packed = 2

class ExpertParallel:
    """See tokenyard.ExpertParallel."""

    @staticmethod
    def make(world: World, *, experts: int, hidden: int, topk: int, tokens_max: int, sms: int, sms_max: int, places_per_rank: int, ring_rows: int, chunk_rows: int, fp32_partials: bool) -> ExpertParallel: ...

    @property
    def rings(self) -> tuple[int, int, int, int, int]: ...

    @property
    def sms(self) -> int: ...

    @property
    def sms_reason(self) -> str: ...

    @property
    def local_experts(self) -> int: ...

    @property
    def first_expert(self) -> int: ...

    def dispatch(self, x: Annotated[NDArray, dict(shape=(None, None), order='C', writable=False)], topk_idx: Annotated[NDArray, dict(shape=(None, None), order='C', writable=False)], topk_weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', writable=False)] | None, *, type: DataType, scales: Annotated[NDArray, dict(shape=(None, None), order='C', writable=False)] | None, scale_order: ScaleOrder, cast: CastToFp8 | None, received_tokens_max: int, watcher: int | None, sms: int, stream: int) -> Received: ...

    def dispatch_by_expert(self, x: Annotated[NDArray, dict(shape=(None, None), order='C', writable=False)], topk_idx: Annotated[NDArray, dict(shape=(None, None), order='C', writable=False)], topk_weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', writable=False)] | None, *, type: DataType, scales: Annotated[NDArray, dict(shape=(None, None), order='C', writable=False)] | None, scale_order: ScaleOrder, cast: CastToFp8 | None, received_tokens_max: int, alignment: int, rows_max: int, clear_padding: bool, sms: int, stream: int) -> tuple[Received, ExpertRows]: ...

    def dispatch_again(self, x: Annotated[NDArray, dict(shape=(None, None), order='C', writable=False)], route: Route, *, type: DataType, scales: Annotated[NDArray, dict(shape=(None, None), order='C', writable=False)] | None, scale_order: ScaleOrder, cast: CastToFp8 | None, watcher: int | None, sms: int, stream: int) -> Received: ...

    def group_by_expert(self, received: Received, *, alignment: int, rows_max: int, clear_padding: bool, scale_order: ScaleOrder, sms: int, stream: int) -> ExpertRows: ...

    def combine(self, y: Annotated[NDArray, dict(shape=(None, None), order='C', writable=False)], route: Route, out: Annotated[NDArray, dict(shape=(None, None), order='C')], *, type: DataType, weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', writable=False)] | None, out_weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C')] | None, bias: Annotated[NDArray, dict(shape=(None, None), order='C', writable=False)] | None, second_bias: Annotated[NDArray, dict(shape=(None, None), order='C', writable=False)] | None, rank_order: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', writable=False)] | None, by_expert: ExpertRows | None, weighted: bool, sms: int, local_sms: int, stream: int) -> None: ...

    def combine_buffer(self, route: Route, *, type: DataType, stream: int) -> object: ...

    @staticmethod
    def memory(*, experts: int, hidden: int, topk: int, tokens_max: int, sms: int, sms_max: int, places_per_rank: int, ranks: int, tokens: int, rows_received: int, type: DataType, row_bytes: int, scale_words: int, hosts: int, ring_rows: int) -> tuple[int, int, int, int, int]: ...

    def place(self, expert_at: Sequence[int]) -> None: ...

    def on_experts_changed(self, hook: Callable[[Sequence[int]], None]) -> None: ...

    @property
    def expert_map(self) -> list[int]: ...

    @property
    def held_experts(self) -> list[int]: ...

    @property
    def lost_experts(self) -> list[int]: ...

    def load(self) -> tuple: ...

    def metrics(self) -> dict: ...

    def failed_ranks(self) -> list[FailedRank]: ...

    def trace_calls(self, on: bool) -> None: ...

    def last_trace(self) -> list: ...

    def check(self) -> None: ...

    def wait(self, *, stream: int) -> None: ...

    def close(self) -> None: ...

class FailedRank:
    """
    A rank without which an exchange continues, or for which it has failed.
    """

    @property
    def rank(self) -> int:
        """The rank."""

    @property
    def why(self) -> str:
        """'timeout', 'lost', 'left out' or 'differs'."""

    @property
    def phase(self) -> str:
        """The step that waited for it."""

    @property
    def expected(self) -> int:
        """The value awaited, mostly an epoch."""

    @property
    def seen(self) -> int:
        """The value last seen."""

    @property
    def waited_s(self) -> float:
        """Seconds that this rank waited for it."""

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

class LowLatencyBatch:
    """A low-latency batch; its arrays support DLPack."""

    @property
    def tokens(self) -> int: ...

    def require_accepted(self) -> None: ...

    @property
    def x(self) -> object:
        """[local experts, slots, hidden] uint16 or uint8: BF16, FP8 bits."""

    @property
    def scales(self) -> object:
        """[local experts, words, slots] int32 bits, or None."""

    @property
    def counts(self) -> object: ...

    @property
    def ranges(self) -> object: ...

    @property
    def source_token(self) -> object: ...

class LowLatency:
    """See tokenyard.LowLatency."""

    @staticmethod
    def make(world: World, *, experts: int, hidden: int, topk: int, tokens_max: int, sms: int, bf16_rows: bool, places_per_rank: int, only_put: bool) -> LowLatency: ...

    @staticmethod
    def memory(*, experts: int, hidden: int, topk: int, tokens_max: int, bf16_rows: bool, places_per_rank: int, ranks: int, put_ranks: int) -> tuple[int, int, int, int]: ...

    @property
    def paths(self) -> list[str]:
        """[ranks] 'self', 'load_store', 'put', or 'none'."""

    @property
    def local_experts(self) -> int: ...

    @property
    def first_expert(self) -> int: ...

    @property
    def expert_map(self) -> list[int]: ...

    @property
    def held_experts(self) -> list[int]: ...

    @property
    def lost_experts(self) -> list[int]: ...

    def set_expert_map(self, expert_at: Sequence[int]) -> None: ...

    def on_experts_changed(self, hook: Callable[[Sequence[int]], None]) -> None: ...

    def evict(self, ranks: Sequence[int], epoch: int | None) -> None: ...

    def admit(self) -> list[int]: ...

    def dispatch(self, x: Annotated[NDArray, dict(shape=(None, None), order='C', writable=False)], topk_idx: Annotated[NDArray, dict(shape=(None, None), order='C', writable=False)], scales: Annotated[NDArray, dict(shape=(None, None), order='C', writable=False)] | None, rows: int, *, topk_weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', writable=False)] | None, active: Sequence[bool], timeout_s: float | None, sms: int, hook: bool, rows_total: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C')] | None, waited_cycles: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C')] | None, stream: int) -> LowLatencyBatch: ...

    def dispatch_nothing(self, rows: int, *, hook: bool, stream: int) -> LowLatencyBatch: ...

    def combine(self, y: Annotated[NDArray, dict(shape=(None, None, None), order='C', writable=False)], topk_weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', writable=False)] | None, batch: LowLatencyBatch, out: Annotated[NDArray, dict(shape=(None, None), order='C')], lost: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C')] | None, logfmt: bool, *, active: Sequence[bool], timeout_s: float | None, sms: int, hook: bool, waited_cycles: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C')] | None, stream: int) -> None: ...

    def receive(self, batch: LowLatencyBatch, *, stream: int) -> None: ...

    def combine_buffer(self, batch: LowLatencyBatch) -> object: ...

    def metrics(self) -> dict: ...

    def failed_ranks(self) -> list[FailedRank]: ...

    def write_mask(self, out: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C')], *, stream: int) -> None: ...

    def update_mask(self, rank: int, masked: bool) -> None: ...

    def clear_mask(self) -> None: ...

    def epoch(self) -> int: ...

    def restart(self, epoch: int) -> None: ...

    def check(self) -> None: ...

    def wait(self, stream: int) -> None: ...

    def close(self) -> None: ...

class DataType(enum.Enum):
    bool = 0

    uint8 = 1

    int8 = 2

    uint16 = 3

    int16 = 4

    uint32 = 5

    int32 = 6

    uint64 = 7

    int64 = 8

    float16 = 9

    bfloat16 = 10

    float32 = 11

    float64 = 12

    complex64 = 13

    complex128 = 14

    float8_e4m3fn = 15

    float8_e5m2 = 16

class ReduceOp(enum.Enum):
    sum = 0

    average = 1

    product = 2

    min = 3

    max = 4

    bit_and = 5

    bit_or = 6

    bit_xor = 7

class Algorithm(enum.Enum):
    automatic = 0

    doubling = 1

    halving_doubling = 2

    ring = 3

    tree = 4

    direct = 5

class CollectivesCounters:
    """Counts of a rank since its start."""

    @property
    def operations(self) -> int:
        """Operations started."""

    @property
    def committed(self) -> int:
        """Operations committed."""

    @property
    def aborted(self) -> int:
        """Operations undone."""

    @property
    def retried(self) -> int:
        """Operations run again."""

    @property
    def bytes_sent(self) -> int:
        """Bytes sent by operations, headers included."""

    @property
    def refused(self) -> int:
        """
        Rejected connections and messages: unauthenticated, of other jobs, or of old epochs.
        """

    @property
    def epochs(self) -> int:
        """Changes of the membership."""

class Kind(enum.Enum):
    """Kinds of operations for Group.submit."""

    all_reduce = 0

    reduce = 1

    broadcast = 2

    all_gather = 3

    gather = 4

    scatter = 5

    reduce_scatter = 6

    all_to_all = 7

    barrier = 8

    monitored_barrier = 9

    send = 10

    receive = 11

class Work:
    """An operation in progress; see tokenyard.Work."""

    def wait(self) -> None: ...

    def wait_for(self, seconds: float) -> bool: ...

    def done(self) -> bool: ...

    def raise_error(self) -> None: ...

    def when_done(self, call: Callable) -> None: ...

    def source(self) -> int: ...

    def failed_ranks(self) -> list[int]: ...

    def choice(self) -> str: ...

class Group:
    """Ranks that run operations together; see tokenyard.Group."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def parts(self) -> int: ...

    @property
    def closed(self) -> bool: ...

    def close(self) -> None: ...

    def active_ranks(self) -> list[int]: ...

    def submit(self, kind: Kind, *, given: Sequence[tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], DataType]], out: Sequence[tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], DataType]], op: ReduceOp, peer: int | None, tag: int, timeout_s: float | None, algorithm: Algorithm) -> Work: ...

    def choice(self, operation: str, bytes: int) -> str: ...

class DeviceCollectives:
    """See tokenyard.DeviceCollectives."""

    @staticmethod
    def make(world: World, *, sms: int, slot_bytes: int, packet_bytes: int, chunk_bytes: int, ring_bytes: int, arena_tensors: bool, keep_inputs: bool, on_failure: str, before: DeviceCollectives | None) -> DeviceCollectives: ...

    @staticmethod
    def memory(*, ranks: int, slot_bytes: int, packet_bytes: int, chunk_bytes: int, ring_bytes: int) -> int: ...

    def barrier(self, *, timeout_s: float | None, protocol: str, sms: int, stream: int) -> None: ...

    def all_reduce(self, input: Annotated[NDArray, dict(order='C', writable=False)], result: Annotated[NDArray, dict(order='C')], type: DataType, op: ReduceOp, factor: float, *, timeout_s: float | None, protocol: str, sms: int, stream: int) -> None: ...

    def reduce(self, input: Annotated[NDArray, dict(order='C', writable=False)], result: Annotated[NDArray, dict(order='C')] | None, type: DataType, op: ReduceOp, factor: float, root: int, *, timeout_s: float | None, protocol: str, sms: int, stream: int) -> None: ...

    def broadcast(self, tensor: Annotated[NDArray, dict(order='C')], type: DataType, root: int, *, timeout_s: float | None, protocol: str, sms: int, stream: int) -> None: ...

    def all_gather(self, input: Annotated[NDArray, dict(order='C', writable=False)], result: Annotated[NDArray, dict(order='C')], type: DataType, counts: Sequence[int], *, timeout_s: float | None, protocol: str, sms: int, stream: int) -> None: ...

    def gather(self, input: Annotated[NDArray, dict(order='C', writable=False)], result: Annotated[NDArray, dict(order='C')] | None, type: DataType, root: int, *, timeout_s: float | None, protocol: str, sms: int, stream: int) -> None: ...

    def scatter(self, input: Annotated[NDArray, dict(order='C', writable=False)] | None, result: Annotated[NDArray, dict(order='C')], type: DataType, root: int, *, timeout_s: float | None, protocol: str, sms: int, stream: int) -> None: ...

    def reduce_scatter(self, input: Annotated[NDArray, dict(order='C', writable=False)], result: Annotated[NDArray, dict(order='C')], type: DataType, op: ReduceOp, factor: float, counts: Sequence[int], *, timeout_s: float | None, protocol: str, sms: int, stream: int) -> None: ...

    def all_to_all(self, input: Annotated[NDArray, dict(order='C', writable=False)], result: Annotated[NDArray, dict(order='C')], type: DataType, sent: Sequence[int], received: Sequence[int], *, timeout_s: float | None, protocol: str, sms: int, stream: int) -> None: ...

    def all_to_all_on_device(self, input: Annotated[NDArray, dict(order='C', writable=False)], result: Annotated[NDArray, dict(order='C')], type: DataType, splits: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C')], received: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C')], *, timeout_s: float | None, protocol: str, sms: int, stream: int) -> None: ...

    def exchange(self, sends: Sequence[tuple[Annotated[NDArray, dict(order='C', writable=False)], DataType, int, int]], receives: Sequence[tuple[Annotated[NDArray, dict(order='C')], DataType, int, int]], *, timeout_s: float | None, sms: int, stream: int) -> None: ...

    def go_on(self) -> int: ...

    def settle(self) -> None: ...

    @property
    def calls(self) -> int: ...

    def check(self) -> None: ...

    def wait(self, *, stream: int) -> None: ...

    def close(self) -> None: ...

def core_table() -> CapsuleType:
    """
    Returns the functions of tokenyard/torch/core_table.hpp, for torch's backend.
    """

def device_capsule(collectives: DeviceCollectives) -> CapsuleType:
    """
    Returns collectives on device tensors as a capsule, for torch's backend.
    """

def retire_device(device: CapsuleType) -> None:
    """
    Makes torch's backend ask for other device collectives before its next call, and waits for the calls that were made.
    """

def await_device(device: CapsuleType, *, stream: int) -> None:
    """
    Waits for all work of a stream, then raises the error of a failed call.
    """

def group_capsule(group: Group) -> CapsuleType:
    """Returns a group as a capsule, for torch's backend."""

class StoreServer:
    """See tokenyard.StoreServer."""

    def __init__(self, *, host: str, port: int, secret: str) -> None: ...

    @property
    def port(self) -> int: ...

    @property
    def refused(self) -> int: ...

    def close(self) -> None: ...

class Piece:
    """A range of memory that tasks access."""

    @property
    def bytes(self) -> int: ...

    @property
    def dtype(self) -> str: ...

    def at(self, offset: int) -> Piece: ...

class TensorMemory:
    """Memory of one rank for a graph's tensors."""

    def __init__(self, world: World) -> None: ...

    def local(self, bytes: int, *, dtype: str = ...) -> Piece: ...

    def visible(self, bytes: int, *, dtype: str = ...) -> tuple[Piece, Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]]: ...

    def shared(self, bytes: int) -> list[Piece]: ...

    def write(self, to: Piece, data: bytes) -> None: ...

    def read(self, source: Piece, bytes: int) -> bytes: ...

class TaskGraph:
    """See tokenyard.megakernel.Graph."""

    def __init__(self, *, rank: int, ranks: int) -> None: ...

    def tensor(self, name: str, piece: Piece, *, bytes: int, given: bool) -> int: ...

    def event(self, name: str, *, count: int | None, dynamic_max: int) -> int: ...

    def add(self, type: str, args: dict, *, name: str, reads: Sequence[tuple[int, int, int, int]], writes: Sequence[tuple[int, int, int, int]], adds: Sequence[tuple[int, int, int, int]], streams: Sequence[tuple[int, int, int, int]], waits: Sequence[tuple[int, int]], signals: Sequence[tuple[int, int, int, bool]], expects: Sequence[int], worker: int | None, cost_ns: int) -> int: ...

    def loop_on(self, event: int) -> None: ...

    def once(self) -> None: ...

    @property
    def task_types(self) -> list[tuple[str, list[str]]]: ...

    def set_cost(self, task: int, cost_ns: int) -> None: ...

class TaskTrace:
    """Times at which each task of a run waited, ran and ended."""

    def perfetto(self) -> str: ...

    def summary(self) -> str: ...

    def measured_costs(self) -> list[int]: ...

    @property
    def rank(self) -> int: ...

    @staticmethod
    def perfetto_of(traces: Sequence[TaskTrace]) -> str: ...

class Megakernel:
    """See tokenyard.megakernel.Megakernel."""

    @staticmethod
    def make(world: World, graph: TaskGraph, *, workers: int, compute_warps: int, unit_bytes: int, ring_units: int, schedulers: int, task_slots: int, trace_records: int, check_accesses: bool) -> Megakernel: ...

    def run(self, iterations: int) -> int: ...

    def start(self) -> None: ...

    def feed(self, iterations: int) -> None: ...

    def wait(self, iterations: int) -> int: ...

    def stop(self) -> int: ...

    @property
    def finished_iterations(self) -> int: ...

    def trace(self) -> TaskTrace: ...

    def traces(self) -> list[TaskTrace]: ...

class RopeScaling:
    """Llama 3's scaling of RoPE's low frequencies."""

    def __init__(self, *, factor: float, low: float, high: float, positions: int) -> None: ...

class DecoderShape:
    """The shape of a dense decoder."""

    def __init__(self, *, vocabulary: int, hidden: int, layers: int, query_heads: int, kv_heads: int, head_dim: int, inner: int, page_tokens: int, positions_max: int, epsilon: float, rope_base: float, rope_scaling: RopeScaling | None = ...) -> None: ...

    def blocks_of(self, multiprocessors: int, ranks: int = ...) -> int: ...

    def check(self, blocks: int, ranks: int = ...) -> None: ...

class DenseDecoder:
    """See tokenyard.megakernel.DenseDecoder."""

    @staticmethod
    def make(memory: TensorMemory, shape: DecoderShape, *, outer: Sequence[Piece], layers: Sequence[Sequence[Piece | None]], windows: Sequence[int], blocks: int, prompts: Sequence[Sequence[int]], stop_tokens: Sequence[int]) -> DenseDecoder: ...

    @property
    def graph(self) -> TaskGraph: ...

    @property
    def blocks(self) -> int: ...

    @property
    def unit_bytes(self) -> int: ...

    @property
    def logits(self) -> Piece: ...

    @property
    def tokens(self) -> Piece: ...

    @property
    def status(self) -> Piece: ...

class GpuFacts:
    """A GPU of this machine."""

    @property
    def index(self) -> int: ...

    @property
    def cuda_index(self) -> int:
        """CUDA's number for it in this process; -1: hidden from it."""

    @property
    def name(self) -> str: ...

    @property
    def uuid(self) -> str: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def links(self) -> list[str]:
        """Link to each GPU: 'NV18', 'PCIe peer' or 'none'; '-' to itself."""

    @property
    def link_bytes_per_second(self) -> float:
        """
        Rate of its active NVLinks together, per direction; 0: none, or not stated.
        """

class FabricFacts:
    """A fabric, by which ranks reach each other."""

    @property
    def name(self) -> str: ...

    @property
    def works(self) -> bool: ...

    @property
    def why(self) -> str:
        """Why it works, as far as it was tried, or does not."""

    @property
    def remedy(self) -> str:
        """Command or option for what does not work; empty if all of it does."""

class SelfTest:
    """A dispatch and a combine among ranks of this machine."""

    @property
    def device(self) -> str: ...

    @property
    def ranks(self) -> int: ...

    @property
    def how(self) -> str:
        """How rank 0 reaches rank 1."""

    @property
    def dispatch_bytes_per_second(self) -> float:
        """Rate at which the slowest rank received rows from others."""

    @property
    def combine_bytes_per_second(self) -> float: ...

    @property
    def link_bytes_per_second(self) -> float:
        """Rate of a GPU's links; 0: no link between the ranks, or unknown."""

    @property
    def link_share(self) -> float:
        """Share of the link that the faster call achieved, 0 to 1."""

    @property
    def error(self) -> str:
        """Why it failed; empty if it passed."""

    @property
    def remedy(self) -> str: ...

class Diagnosis:
    """Hardware, driver and fabrics of this machine."""

    @property
    def system(self) -> str: ...

    @property
    def toolkit(self) -> str: ...

    @property
    def driver(self) -> str: ...

    @property
    def gpus(self) -> list[GpuFacts]: ...

    @property
    def fabrics(self) -> list[FabricFacts]: ...

    @property
    def self_tests(self) -> list[SelfTest]:
        """Empty: not made."""

    def json(self) -> str:
        """Returns a JSON object of these fields."""

    def __str__(self) -> str:
        """Returns a page of text."""

def doctor(self_test: bool = ...) -> Diagnosis: ...
