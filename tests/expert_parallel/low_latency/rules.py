"""Breaks the rules of the low-latency protocol one at a time and asks the simulator to notice.

`./run simulate --mutants` weakens memory accesses. It cannot break what the protocol says about
values: that no payload looks like empty staging, that places are emptied, that parities alternate,
that words of another epoch are not accepted, that blocks agree. Here each line that ensures one of
these is changed in a copy of the kernels, which is compiled into its own simulator.

    python3 tests/expert_parallel/low_latency/rules.py BUILD [--seeds 2000] [--budget 240]
        [--jobs 2] [--only TEXT]
    python3 tests/expert_parallel/low_latency/rules.py --lines    # only checks that lines exist

BUILD is a build tree made with Ninja and TOKENYARD_UNITY=OFF in which `simulate` is up to date.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = Path("src/expert_parallel/low_latency/kernels")
KERNELS = ("dispatch_host.cpp", "combine_host.cpp")
"""Sources in the build tree's folder of the same name (tokenyard_kernels of cmake/Parts.cmake)."""
SHARE = 20
"""Seeds per run of the simulator."""
HANG_S = 180
"""Seconds after which the simulator takes a seed for one that hangs, which counts as a failure."""


@dataclass(frozen=True)
class Rule:
    """A line of the kernels that ensures something, and its broken replacement."""

    broken: str
    file: str
    line: str
    instead: str
    suite: str = "low_latency"


RULES = (
    Rule(
        "a payload may hold the sentinel",
        "protocol.hpp",
        "return word == kEmpty ? nans : word;",
        "return nans == 0 ? nans : word;",
    ),
    Rule(
        "a place that was read is not emptied",
        "take_kernel.hpp",
        "store<Order::relaxed, Scope::sys>(staged, empty_piece());",
        "static_cast<void>(staged);",
    ),
    Rule(
        "a place is emptied of all but its first word",
        "take_kernel.hpp",
        "store<Order::relaxed, Scope::sys>(staged, empty_piece());",
        "store<Order::relaxed, Scope::sys>(staged, Bytes16{{0, kEmpty, kEmpty, kEmpty}});",
    ),
    Rule(
        "both parities are one",
        "protocol.hpp",
        "return epoch & 1;",
        "return epoch & 0;",
    ),
    Rule(
        "ranks swap parities",
        "liveness_kernel.hpp",
        "return parity_of(epoch());",
        "return parity_of(epoch() + params.rank);",
    ),
    Rule(
        "a buffer is written an epoch before it is drained",
        "call_kernel.hpp",
        "return call.epoch() - 2;",
        "return call.epoch() - 3;",
    ),
    Rule(
        "a rank publishes as drained what it only begins to read",
        "call_kernel.hpp",
        "Drained{received(Kind::dispatch), received(Kind::combine)}",
        "Drained{received(Kind::dispatch) + 1, received(Kind::combine) + 1}",
    ),
    Rule(
        "sums are sent before the destination's buffer is drained",
        "send_sums_kernel.hpp",
        "const bool some_closed = open_call(begun, look, sums);",
        "const bool some_closed = open_call(begun, look, false);",
    ),
    Rule(
        "ids of another epoch are accepted",
        "row_bitmap_kernel.hpp",
        "return packed.stamp() == awaited;",
        "return packed.stamp().word != 0;",
    ),
    Rule(
        "ids in another format are accepted",
        "row_bitmap_kernel.hpp",
        "return packed.stamp() == awaited;",
        "return packed.stamp().epoch() == awaited.epoch();",
        suite="low_latency_formats",
    ),
    Rule(
        "data in another format is not looked for",
        "liveness_kernel.hpp",
        "const Difference found = difference();",
        "const Difference found{};",
        suite="low_latency_formats",
    ),
    Rule(
        "the host is told any choice that is no expert, instead of the first",
        "ids_kernel.hpp",
        "fetch_max<Order::relaxed, Scope::gpu>(first, ~choice);",
        "exchange<Order::relaxed, Scope::gpu>(first, ~choice);",
    ),
    Rule(
        "a mistake noted while another thread reports is never reported",
        "ids_kernel.hpp",
        "noted = compare_exchange<Order::acq_rel, Scope::gpu>(&workspace.mistakes, counted, 0);",
        "exchange<Order::acq_rel, Scope::gpu>(&workspace.mistakes, 0);",
    ),
    Rule(
        "words that no call has written are weights of epoch 0",
        "protocol.hpp",
        "return dispatched << 1 | 1;",
        "return dispatched;",
    ),
    Rule(
        "words that no call has written are ids of epoch 0",
        "protocol.hpp",
        "return {(epoch << 1 | 1) << kFormatBits | format};",
        "return {(epoch << 1) << kFormatBits | format};",
    ),
    Rule(
        "epochs are compared as if they did not wrap",
        "call_kernel.hpp",
        "return static_cast<int32_t>(drained.of(call.kind) - epoch_to_be_drained(call)) >= 0;",
        "return drained.of(call.kind) >= epoch_to_be_drained(call);",
    ),
    Rule(
        "places of sums that are not in hand are not emptied",
        "add_sums_kernel.hpp",
        "uint32_t left = kept >> kPartialSumsHeld << kPartialSumsHeld;",
        "uint32_t left = 0 * kept;",
        suite="low_latency_many_sums",
    ),
    Rule(
        "weights of another epoch are accepted",
        "send_sums_kernel.hpp",
        "return published.epoch == call.weights_stamp;",
        "return published.epoch != 0;",
    ),
    Rule(
        "weights that arrived early are accepted whatever their epoch",
        "send_sums_kernel.hpp",
        "waits = has_row() && !is_alone(all) && early_.epoch != call.weights_stamp;",
        "waits = has_row() && !is_alone(all) && early_.epoch == 0;",
    ),
    Rule(
        "weights are read where another batch's are",
        "send_sums_kernel.hpp",
        "const Stamped published = one.epoch == call.weights_stamp ? one : other;",
        "const Stamped published = one;",
    ),
    Rule(
        "weights of both batches share one place",
        "window.hpp",
        "return weights_ + size_t{slot(batch, source, token)} * weights_bytes_;",
        "return weights_ + size_t{slot(batch & 0, source, token)} * weights_bytes_;",
    ),
    Rule(
        "a batch's weights are published under the previous epoch",
        "send_rows_kernel.hpp",
        "weights_stamp(call_.call.epoch()), weight);",
        "weights_stamp(call_.call.epoch() - 1), weight);",
    ),
    Rule(
        "a token's only row is weighted twice",
        "send_sums_kernel.hpp",
        "row.weight = is_alone(all) ? 1 : std::bit_cast<float>(early_.value);",
        "row.weight = std::bit_cast<float>(early_.value);",
    ),
    Rule(
        "a token's only row is never weighted",
        "add_sums_kernel.hpp",
        ".weight = chosen == 1 ? choice.row.weight : 1.0f};",
        ".weight = 1.0f};",
    ),
    Rule(
        "an owner keeps no weights of rows that come unchanged",
        "send_rows_kernel.hpp",
        "params.out.weights[at] = weight;",
        "if (rank == common.rank) params.out.weights[at] = weight;",
    ),
    Rule(
        "rows behind one that needs no weight wait for none either",
        "send_sums_kernel.hpp",
        "const bool alone = first && !some_closed && group.hoists();",
        "const bool alone = !some_closed && group.hoists();",
    ),
    Rule(
        "weights are awaited for tokens whose sums have left",
        "send_sums_kernel.hpp",
        "const bool weighed = group.is_weighed() && (stays || !some_closed);",
        "const bool weighed = group.is_weighed() && !some_closed;",
        suite="low_latency_reuse",
    ),
    Rule(
        "a span counts as finished before its losses are recorded",
        "add_sums_kernel.hpp",
        "warp::once([&] { return fetch_or<Order::relaxed, Scope::block>(&plan.outcome, lost); });",
        "if (warp::lane() == kWarpLanes - 1)\n"
        "      fetch_or<Order::relaxed, Scope::block>(&plan.outcome, lost);",
    ),
    Rule(
        "a hoisted row is weighted at its original place",
        "send_sums_kernel.hpp",
        "hoisted_ == 1u << warp::lane() ? 0 : (all & lanes_below()) | hoisted_;",
        "hoisted_ == 1u << warp::lane() ? 0 : all & lanes_below();",
    ),
    Rule(
        "a block follows its own view instead of the verdict",
        "receive_rows_kernel.hpp",
        "differs |= proposal.verdict() != proposal.mine;",
        "differs |= proposal.verdict() == Verdict::open;",
    ),
    Rule(
        "places are emptied before the vote",
        "add_sums_kernel.hpp",
        "const bool complete = finish_tokens(call, tokens, partial_sums, tokens_emptied);",
        "const bool complete = finish_tokens(call, tokens, partial_sums, tokens_emptied);\n"
        "  empty_places(call, tokens, partial_sums, tokens_emptied);",
    ),
    Rule(
        "places emptied before the vote stay empty when it fails",
        "add_sums_kernel.hpp",
        "partial_sums.fill_again();",
        "",
    ),
    Rule(
        "a token's places are emptied once one of its spans is finished",
        "add_sums_kernel.hpp",
        "if (load<Order::relaxed, Scope::block>(&plan.outcome) != finished) return;",
        "if (load<Order::relaxed, Scope::block>(&plan.outcome) == 0) return;",
    ),
)


def break_rule(rule: Rule, sources: Path) -> None:
    path = sources / rule.file
    text = path.read_text()
    times = text.count(rule.line)
    if times != 1:
        raise SystemExit(f"{rule.file}: expected exactly once, found {times} times: {rule.line}")
    path.write_text(text.replace(rule.line, rule.instead))


def copy_of_kernels(rule: Rule, scratch: Path) -> None:
    """Copies the kernels, with the rule broken."""
    shutil.copytree(ROOT / FOLDER, scratch / FOLDER)
    break_rule(rule, scratch / FOLDER)


def compile_commands(build: Path) -> dict[str, list[str]]:
    """Returns the build's command for each instrumented kernel, without its output and source."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = Path(entry["file"])
        if (
            source.parent == build / FOLDER
            and source.name in KERNELS
            and "-fsanitize=thread" in entry["command"]
        ):
            words = shlex.split(entry["command"])
            cut = words.index("-o")
            found[source.name] = words[:cut]
    if set(found) != set(KERNELS):
        raise SystemExit(f"{build}: no instrumented kernels of {FOLDER} (TOKENYARD_UNITY=OFF?)")
    return found


def link_command(build: Path) -> str:
    """Returns the build's command that links its simulator."""
    listing = subprocess.run(
        ["ninja", "-C", build, "-t", "commands", "tests/simulate"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    command = listing.stdout.splitlines()[-1].removeprefix(": && ")
    return command.split(" && ")[0]


def simulator(rule: Rule, build: Path, scratch: Path) -> Path:
    """Builds a simulator whose kernels break the rule."""
    copy_of_kernels(rule, scratch)
    running = []
    for name, command in compile_commands(build).items():
        words = [*command, "-Wno-error", f"-I{scratch}/src", "-o", f"{scratch}/{name}.o"]
        # The copy's folder must precede the tree's own.
        first = next(i for i, word in enumerate(words) if word.startswith("-I"))
        words.insert(first, words.pop(words.index(f"-I{scratch}/src")))
        running.append(subprocess.Popen([*words, "-c", build / FOLDER / name], cwd=build))
    if any(process.wait() != 0 for process in running):
        raise SystemExit(f"does not compile: {rule.broken}")
    program = scratch / "simulate"
    objects = " ".join(str(scratch / f"{name}.o") for name in KERNELS)
    # The copies come first: the linker takes the first definition of an inline function, and does
    # not pull in the library's own kernels.
    compiler, rest = link_command(build).split(" ", 1)
    rest = re.sub(r"-o \S+", f"-o {program}", rest, count=1)
    command = f"{compiler} {objects} {rest}"
    subprocess.run(command, shell=True, check=True, cwd=build)
    return program


def verdict(program: Path, suite: str, args: argparse.Namespace) -> tuple[bool, str]:
    """Returns whether a suite notices, and its last output. Runs a share of the seeds at a time,
    since the first failure is enough."""
    passed, until = 0, time.monotonic() + args.budget
    for first in range(1, args.seeds + 1, SHARE):
        left = until - time.monotonic()
        if left <= 0:
            break
        run = subprocess.run(
            [program, "--suite", suite, "--first", str(first), "--seeds", str(SHARE),
             "--budget", f"{max(left, HANG_S + 20):.0f}", "--jobs", str(args.jobs)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        end = re.search(r"(\d+) passed, (\d+) failed$", run.stdout.strip())
        if end is None:
            return True, f"ended with {run.returncode}"
        passed += int(end[1])
        if end[2] != "0":
            return True, f"{passed} seeds passed, {end[2]} failed"
    return False, f"{passed} seeds passed"


def main() -> int:
    """Returns the number of rules that can be broken unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("build", type=Path, nargs="?")
    which.add_argument("--lines", action="store_true", help="only check that each line exists once")
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument(
        "--budget", type=int, default=240,
        help=f"seconds per rule; a seed that hangs takes at least {HANG_S}",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", metavar="TEXT", help="only rules that contain TEXT")
    args = parser.parse_args()
    rules = [rule for rule in RULES if args.only in rule.broken]
    if args.lines:
        for rule in rules:
            with tempfile.TemporaryDirectory() as scratch:
                copy_of_kernels(rule, Path(scratch))
        return 0
    survived = 0
    for rule in rules:
        with tempfile.TemporaryDirectory() as scratch:
            program = simulator(rule, args.build.resolve(), Path(scratch))
            caught, end = verdict(program, rule.suite, args)
        survived += not caught
        print(f"{'caught' if caught else 'SURVIVED':8}  {rule.broken}: {end}", flush=True)
    print(f"{len(rules) - survived} caught, {survived} survived")
    return survived


if __name__ == "__main__":
    sys.exit(main())
