"""Tests of the tool itself: each operator on a snippet, names, halving, weak tests, the ledger."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import packing
import python_scan
import schemata
import sweep
import tree as trees
from schemata import Change, Mutant
from suites import Record, Run, Test

try:
    import cpp_scan
except ImportError:
    cpp_scan = None

needs_libclang = pytest.mark.skipif(cpp_scan is None, reason="libclang is not installed")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


def found(changes: list[Change], operator: str) -> list[str]:
    return [change.what for change in changes if change.operator == operator]


def cpp(body: str, head: str = "") -> list[Change]:
    assert cpp_scan is not None
    return cpp_scan.scan_text(f"{head}\n{body}\n")


# ---- operators, C++ -----------------------------------------------------------------------------


@needs_libclang
@pytest.mark.parametrize(
    ("operator", "body", "expected"),
    [
        ("compare", "bool f(int a, int b) { return a < b; }", ["a < b -> a <= b"]),
        ("compare", "bool f(int a, int b) { return a == b; }", ["a == b -> a >= b"]),
        ("compare", "bool f(unsigned a, unsigned b) { return static_cast<int32_t>(a - b) >= 0; }",
         ["static_cast<int32_t>(a - b) >= 0 -> (a) >= (b)",
          "static_cast<int32_t>(a - b) >= 0 -> static_cast<int32_t>(a - b) > 0"]),
        ("constant", "int f() { return 7; }", ["7 -> 6", "7 -> 8"]),
        ("constant", "int f() { return 0; }", ["0 -> 1"]),
        ("condition", "int f(bool a) { if (a) return 1; return 2; }",
         ["a -> inverted", "a -> true"]),
        ("term", "bool f(bool a, bool b) { return a && b; }",
         ["&& b -> left out", "a && -> left out"]),
        ("statement", "void f(int& a) { a = 3; }", ["a = 3; -> nothing"]),
        ("statement", "void g(); void f() { g(); }", ["g(); -> nothing"]),
        ("return", "void g(); void f() { g(); g(); }", ["return before g()"]),
        ("return", "int g(); int f() { g(); return g(); }", []),
        ("swap", "int g(int, int); int f(int a, int b) { return g(a, b); }",
         ["g: a, b -> swapped"]),
        ("swap", "int g(int, char); int f(int a, char b) { return g(a, b); }", []),
        ("epoch", "unsigned f(unsigned epoch) { return epoch; }",
         ["epoch -> epoch +1", "epoch -> epoch -1"]),
        ("epoch", "unsigned f(unsigned parity) { return parity; }", ["parity -> the other"]),
        ("bound", "void f(int n) { for (int i = 0; i < n; ++i) ++n; }",
         ["i < n -> (i)+1<(n)", "for (int i = 0; i < n; ++i) ++n -> its first turn only"]),
        ("check", "void require(bool); void f(bool a) { require(a); }", ["require(a); -> nothing"]),
        ("check", "void f(bool a) { if (!a) throw 1; }", ["if (!a) throw -> not checked"]),
        ("release", "struct S { void close(); }; void f(S& s) { s.close(); }",
         ["s.close(); -> nothing"]),
    ],
)  # fmt: skip
def test_operators_of_cpp(operator: str, body: str, expected: list[str]) -> None:
    assert sorted(found(cpp(body, "using int32_t = int;"), operator)) == sorted(expected)


@needs_libclang
@pytest.mark.parametrize(
    "body",
    [
        "constexpr int a = 1 + 2;",
        "void f() { constexpr int a = 3; static_assert(a == 3); }",
        "template <int N> int g(); int f() { return g<4>(); }",
        "void f(int a) { switch (a) { case 4: break; } }",
        "int f(int a = 4);",
        "template <class T> int f() { if constexpr (sizeof(T) == 4) { } ; }",
        "void f() { int a[4]; }",
        "enum class E { a = 4 };",
        "struct S { int a : 4; bool operator==(const S&) const = default; };",
        "#define F() int f() { return 4; }\nF()",
        "consteval int f() { return 4; }",
        "void f(int a) { throw a == 4; }",
    ],
)
def test_what_a_compiler_evaluates_has_no_constant_or_comparison(body: str) -> None:
    changes = cpp(body)
    assert found(changes, "constant") + found(changes, "compare") == []


@needs_libclang
def test_templates_and_lambdas_have_mutants() -> None:
    body = "template <class T> bool f(T a, T b) { auto g = [&] { return a < b; }; return g(); }"
    assert found(cpp(body), "compare") == ["a < b -> a <= b"]


# ---- operators, Python --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "body", "expected"),
    [
        ("compare", "return a < b", ["a < b -> <="]),
        ("compare", "return a is None", ["a is None -> is not"]),
        ("compare", "return 0 <= a < b",
         ["0 <= a < b -> (0) < (a) < (b)", "0 <= a < b -> (0) <= (a) <= (b)"]),
        ("constant", "return 7", ["7 -> 6", "7 -> 8"]),
        ("condition", "if a:\n    b()", ["a -> True", "a -> inverted"]),
        ("term", "return a and b", ["and a -> left out", "and b -> left out"]),
        ("statement", "b(a)", ["b(a) -> nothing"]),
        ("return", "b()\n    b()", ["return before b()"]),
        ("swap", "return g(a, b)", ["g: a, b -> swapped"]),
        ("epoch", "return a.epoch", ["a.epoch -> (a.epoch) - 1"]),
        ("bound", "for i in a:\n        b()", ["for i in a -> its first turn only"]),
        ("check", "if a:\n        raise ValueError", ["if a: raise -> not checked"]),
        ("release", "b.close()", ["b.close() -> nothing"]),
    ],
)  # fmt: skip
def test_operators_of_python(operator: str, body: str, expected: list[str]) -> None:
    text = f"def f(a, b):\n    {body}\n".replace(
        "\n    b()\n", "\n        b()\n" if body.startswith("if a:\n    b") else "\n    b()\n"
    )
    assert sorted(found(python_scan.scan(text), operator)) == sorted(expected)


def rewritten_python(text: str) -> tuple[str, list[Mutant]]:
    mutants = schemata.named("f.py", text.encode(), python_scan.scan(text))
    done = schemata.rewrite(text.encode(), mutants, lambda m: f"on({m.index})", python=True)
    return done.text.decode(), mutants


PYTHON = '''
def add(values, limit):
    """Adds up."""
    total = 0
    for value in values:
        if value < limit and value != 3:
            total += value
        log(value)
    if total > 100:
        raise ValueError("much")
    return total
'''


def test_every_python_mutant_of_a_function_behaves_otherwise_or_runs() -> None:
    text, mutants = rewritten_python(PYTHON)
    assert len({m.operator for m in mutants}) >= 6
    seen = set()
    for chosen in (-1, *range(len(mutants))):
        scope = {"on": lambda number, chosen=chosen: number == chosen, "log": lambda value: None}
        exec(compile(text, "f.py", "exec"), scope)
        try:
            seen.add((chosen, scope["add"]([1, 2, 3, 5, 60], 60)))
        except ValueError:
            seen.add((chosen, "much"))
        except TypeError:
            seen.add((chosen, "type"))
    assert (-1, 8) in seen
    assert sum(result != 8 for _, result in seen) > len(mutants) / 2


def test_imports_stand_after_docstrings_and_future() -> None:
    text = b'"""Doc."""\nfrom __future__ import annotations\nimport os\n'
    lines = trees.with_import(text, text).decode().splitlines()
    assert lines.index("from tokenyard_mutants import on as _mutant_on") == 2


# ---- names and rewriting ------------------------------------------------------------------------


def test_names_survive_moved_lines() -> None:
    before = schemata.named("f.py", PYTHON.encode(), python_scan.scan(PYTHON))
    moved = "import os\n\n\n" + PYTHON
    after = schemata.named("f.py", moved.encode(), python_scan.scan(moved))
    assert [m.name for m in before] == [m.name for m in after]
    assert [m.line + 3 for m in before] == [m.line for m in after]


def test_a_build_holds_the_chosen_mutants_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "ROOT", tmp_path / "root")
    monkeypatch.setattr(trees, "TREE", tmp_path / "tree")
    monkeypatch.setattr(trees, "BUILD", tmp_path)
    text = "int f(int a) {\n  return a +\n      g(1, 2);\n}\n"
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "f.cpp").write_text(text)
    changes = [
        Change(at, at + 1, "constant", "choice", str(value), "")
        for at in (text.index("1"), text.index("2"))
        for value in (7, 8)
    ]
    mutants = schemata.named("f.cpp", text.encode(), changes)
    tree = trees.Tree({"f.cpp": mutants, "g.cpp": schemata.named("g.cpp", b"1", [])})
    stamp = tree.stamp
    tree.choose(["gone", mutants[2].name, mutants[1].name])
    assert tree.stamp != stamp
    assert [tree.holds(mutant) for mutant in mutants] == [False, True, True, False]
    assert [tree.number(mutant) for mutant in mutants[1:3]] == [2, 1]
    tree.drop(mutants[1], "error")
    assert not tree.holds(mutants[1])
    tree.write_file("f.cpp")
    head, rest = (tmp_path / "tree" / "f.cpp").read_text().split("\n", 2)[1:]
    first, body = rest.split("\n", 1)
    assert first == f'# 1 "{tmp_path}/tree/f.cpp" 3'
    assert body.count("\n") == text.count("\n")
    assert head.startswith('extern "C"')
    assert "TOKENYARD_MUTANT(mutants_states,1)?(7)" in body
    assert body.count("TOKENYARD_MUTANT") == 1


@needs_compiler
def test_a_mutant_may_leave_what_warnings_are_about(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "a.cpp"
    runtime = pathlib.Path(trees.HERE) / "runtime.hpp"
    body = "int f(int a) { int unused; return static_cast<int>(unsigned{-1}); }"
    source.write_text(f'#include "{runtime}"\n# 1 "{source}" 3\n{body}\n')
    command = ["g++", "-Wall", "-Wextra", "-Werror", "-c", str(source), "-o", str(tmp_path / "a")]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_what_a_file_costs_is_counted_in_translation_units(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "ROOT", tmp_path)
    monkeypatch.setattr(trees, "BUILD", tmp_path / "build")
    scanned = tmp_path / "build" / "scan"
    scanned.mkdir(parents=True)
    (scanned / "build.ninja").touch()
    (tmp_path / "src").mkdir()
    texts = {"a.hpp": "", "b.hpp": '#include "a.hpp"\n', "a.cpp": '#include "b.hpp"\n',
             "b.cpp": '#include <vector>\n# include "a.hpp"\n'}  # fmt: skip
    for name, text in texts.items():
        (tmp_path / "src" / name).write_text(text)
    entries = [{"file": str(tmp_path / "src" / name)} for name in ("a.cpp", "b.cpp", "b.cpp")]
    (scanned / "compile_commands.json").write_text(json.dumps(entries))
    count = trees.units_of_files()
    assert [count[f"src/{name}"] for name in texts] == [3, 1, 1, 2]


@needs_libclang
def test_a_part_is_found_in_units_that_another_was_read_from(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "src/net/a.hpp": "inline int a(int value) { return value < 4 ? value : 4; }\n",
        "src/membership/b.cpp": '#include "net/a.hpp"\nint b(int c) { return c < 3 ? a(c) : 2; }\n',
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    for name, value in {"ROOT": tmp_path, "BUILD": tmp_path / "build"}.items():
        monkeypatch.setattr(trees, name, value)
    monkeypatch.setattr(trees, "sources", lambda: list(texts))
    monkeypatch.setattr(trees, "configure", lambda source, binary: None)
    scanned = tmp_path / "build" / "scan"
    scanned.mkdir(parents=True)
    source = tmp_path / "src/membership/b.cpp"
    entry = {"file": str(source), "command": f"g++ -std=c++20 -I{tmp_path}/src -c {source}"}
    (scanned / "compile_commands.json").write_text(json.dumps([entry]))
    assert trees.scan(["membership"])["src/membership/b.cpp"]
    assert trees.scan(["net"])["src/net/a.hpp"]


def test_names_are_distinct() -> None:
    names = [m.name for m in schemata.named("f.py", PYTHON.encode(), python_scan.scan(PYTHON))]
    assert len(names) == len(set(names))


CPP = """extern "C" int printf(const char*, ...);
static int twice(int value) { return value * 2; }
constexpr int limit(int a) { return a < 4 ? a : 4; }
static_assert(limit(9) == 4);
int sum(const int* values, int count) {
  int total = 0;
  for (int i = 0; i < count; ++i) {
    if (values[i] == 3 ||
        values[i] > 100)
      continue;
    total += twice(values[i]);  // a comment
  }
  return total;
}
int main() {
  const int values[] = {1, 3, 5, 200};
  printf("%d\\n", sum(values, limit(9)));
}
"""


def schemata_of(tmp_path: pathlib.Path, text: str) -> tuple[pathlib.Path, list[Mutant]]:
    """Returns a program with all mutants of a text in it, built as the tree is."""
    assert cpp_scan is not None
    mutants = schemata.named("f.cpp", text.encode(), cpp_scan.scan_text(text))
    done = schemata.rewrite(
        text.encode(), mutants, lambda m: f"TOKENYARD_MUTANT(mutants_states,{m.index})"
    )
    assert done.text.count(b"\n") == text.count("\n")
    source = tmp_path / "f.cpp"
    source.write_bytes(
        b'extern "C" __attribute__((visibility("hidden"))) unsigned char mutants_states[];\n'
        + done.text
    )
    here = pathlib.Path(__file__).parent
    program = tmp_path / "f"
    subprocess.run(
        ["g++", "-std=c++20", "-w", "-O1", "-fsanitize=undefined",
         "-include", str(here / "runtime.hpp"),
         "-DMUTANTS_BYTES=4096", str(source), str(here / "runtime.cpp"), "-o", str(program)],
        check=True,
    )  # fmt: skip
    return program, mutants


@needs_libclang
@needs_compiler
def test_one_build_holds_all_mutants_and_records_what_is_reached(tmp_path: pathlib.Path) -> None:
    program, mutants = schemata_of(tmp_path, CPP)

    def output(**environment: str) -> str:
        done = subprocess.run(
            [program], env=environment, capture_output=True, text=True, timeout=10, check=False
        )
        return done.stdout

    assert output() == "12\n"
    by_what = {mutant.change.what: mutant.index for mutant in mutants}
    assert output(TOKENYARD_MUTANT=str(by_what["values[i] == 3 -> values[i] >= 3"])) == "2\n"
    assert output(TOKENYARD_MUTANT=str(by_what["i < count -> (i)+1<(count)"])) == "12\n"
    assert output(TOKENYARD_MUTANT=str(by_what["total += twice(values[i]); -> nothing"])) == "0\n"
    states = tmp_path / "states"
    states.write_bytes(b"\1" * 4096)
    assert output(TOKENYARD_MUTANTS_REACHED=str(states)) == "12\n"
    reached = packing.unpack(packing.pack(states.read_bytes()))
    assert by_what["values[i] == 3 -> values[i] >= 3"] in reached
    # A constant evaluation has no mutants, but the same function has them while the program runs.
    assert by_what["a < 4 -> a <= 4"] in reached
    assert len(mutants) not in reached


def test_complaints_are_laid_at_the_right_mutant() -> None:
    text = b"int f(int a) { return g(a, 4); }\n"
    changes = [
        Change(text.index(b"g("), text.index(b");") + 1, "swap", "choice", "g(4, a)", ""),
        Change(text.index(b"4"), text.index(b"4") + 1, "constant", "choice", "5", ""),
    ]
    mutants = schemata.named("f.cpp", text, changes)
    done = schemata.rewrite(text, mutants, lambda m: f"M{m.index}")
    column = done.text.index(b"g(4, a)") + 1
    assert [m.operator for m in schemata.culprits(done, 1, column)] == ["swap"]
    column = done.text.index(b"(5)") + 2
    assert [m.operator for m in schemata.culprits(done, 1, column)] == ["constant"]
    assert schemata.culprits(done, 1, 1) == []


def test_compilers_errors_are_read() -> None:
    log = (
        "In file included from /t/a.cpp:1:\n"
        "/t/b.hpp:7:9:   required from here\n"
        "/t/c.hpp:3:14: error: no match for 'operator<'\n"
        "/t/c.hpp:1:2: note: candidate\n"
    )
    (complaint,) = trees.complaints(log)
    assert complaint.places == [("/t/c.hpp", 3, 14), ("/t/b.hpp", 7, 9), ("/t/c.hpp", 1, 2)]


def test_halving_finds_what_does_not_compile(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def f(a):\n" + "".join(f"    g({n})\n" for n in range(10))
    monkeypatch.setattr(trees, "ROOT", tmp_path / "root")
    monkeypatch.setattr(trees, "TREE", tmp_path / "tree")
    monkeypatch.setattr(trees, "BUILD", tmp_path)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "f.py").write_text(text)
    mutants = schemata.named("f.py", text.encode(), python_scan.scan(text))
    tree = trees.Tree({"f.py": mutants})
    bad = {mutants[2].index, mutants[9].index}

    def compiles() -> bool:
        written = (tmp_path / "tree" / "f.py").read_text()
        return not any(f"_mutant_on({number})" in written for number in bad)

    assert trees.halve(tree, "f.py", compiles) == 2
    assert {m.index for m in mutants if m.name in tree.dropped} == bad


# ---- running ------------------------------------------------------------------------------------

WEAK = """import f

def test_sums():
    assert f.{call} == {result}
"""
MODULE = "from tokenyard_mutants import on as _mutant_on\n"


@pytest.mark.parametrize(
    ("call", "result", "survives"),
    [
        ("at_most(5, 3)", 3, True),
        ("at_most(3, 3) + f.at_most(5, 3)", 6, True),
        ("twice(4)", 8, False),
    ],
)
def test_a_weak_test_leaves_its_survivor(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, call: str, result: int, survives: bool
) -> None:
    # `<` for `<=` gives the same result; a doubled number that is off by one does not.
    text = (
        "def at_most(a, b):\n    return a if a <= b else b\n\n\ndef twice(a):\n    return a * 2\n"
    )
    rewritten, mutants = rewritten_python(text)
    (tmp_path / "f.py").write_text(MODULE + rewritten.replace("on(", "_mutant_on("))
    shutil.copy(pathlib.Path(__file__).parent / "runtime.py", tmp_path / "tokenyard_mutants.py")
    (tmp_path / "test_f.py").write_text(WEAK.format(call=call, result=result))
    monkeypatch.setattr("suites.TREE", tmp_path)
    monkeypatch.setattr("suites.BUILD", tmp_path)
    monkeypatch.setattr("suites.environment_of_python", lambda: {"PYTHONPATH": str(tmp_path)})
    operator = "compare" if survives else "constant"
    mutant = next(m for m in mutants if m.operator == operator)
    mutant = schemata.dataclasses.replace(mutant, file="python/tokenyard/f.py")
    # The judge allows ten times the seconds: enough for pytest to start on a busy machine.
    test = Test("pytest", "test_f.py", "test_sums", 20.0)
    judge = sweep.Judge([Record(test, True, frozenset([mutant.index]))], 30, "abc")
    row = judge.judge(mutant, mutant.index)
    assert row.outcome == ("survived" if survives else "caught")
    assert judge.judge(mutant, 999).outcome == "unreached"


def test_what_a_test_leaves_running_is_ended_with_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In a process of its own, which adopts and ends its descendants.
    script = f"""
import os, pathlib, sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import suites
suites.TREE = pathlib.Path({str(tmp_path)!r})
suites.adopt_orphans()
out = suites.run(["sh", "-c", "setsid sleep 1000 & echo $! > pid; wait"], 0.5, {{}})
assert out.code is None, out
try:
    os.kill(int(pathlib.Path({str(tmp_path)!r}, "pid").read_text()), 0)
except ProcessLookupError:
    print("ended")
early = suites.run(["sh", "-c", "echo now FAILED; sleep 1000"], 60, {{}}, "FAILED")
print(early.code, early.seconds < 50)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["ended", "1", "True"], done.stderr


def test_who_caught_it_is_read_from_the_output() -> None:
    tests = [Test("gtest", "net_test", "A.B"), Test("gtest", "net_test", "A.C")]
    failed = (
        "[ RUN      ] A.B\n[       OK ] A.B (0 ms)\n[ RUN      ] A.C\n[  FAILED  ] A.C (3 ms)\n"
    )
    assert sweep._caught_by(sweep.Step(tests), Run(1, 1, failed)) == "net_test A.C"
    died = "[ RUN      ] A.B\n"
    assert sweep._caught_by(sweep.Step(tests), Run(-11, 1, died)) == "net_test A.B (signal 11)"
    assert sweep._caught_by(sweep.Step(tests), Run(None, 1, died)) == "net_test A.B (out of time)"
    seeds = [Test("simulate", "engine", "4")]
    assert (
        sweep._caught_by(sweep.Step(seeds), Run(1, 1, "engine: seed 4 FAILED\n"))
        == "simulate engine seed 4"
    )


def test_near_and_cheap_tests_go_first() -> None:
    mutant = Mutant(
        "src/net/a.cpp",
        1,
        0,
        "src/net/a.cpp constant 00000000.1",
        Change(0, 1, "constant", "choice", "", ""),
    )
    reaching = [
        Test("pytest", "tests/python/test_a.py", "test_b", 0.1),
        Test("simulate", "engine", "3", 0.2),
        Test("gtest", "fabric_test", "F.A", 0.1),
        Test("gtest", "net_test", "N.B", 5),
        Test("gtest", "net_test", "N.A", 0.1),
    ]
    steps = sweep.plan(mutant, reaching)
    assert [step.tests[0].of for step in steps] == [
        "net_test", "net_test", "engine", "fabric_test", "tests/python/test_a.py", "engine",
    ]  # fmt: skip
    assert [step.tests[0].name for step in steps][:2] == ["N.A", "N.B"]
    assert steps[-1].open_ended


# ---- draw, ledger, results ----------------------------------------------------------------------


def mutants_of(file: str, count: int) -> list[Mutant]:
    text = "def f():\n" + "".join(f"    g({n})\n" for n in range(10, 10 + count))
    return schemata.named(file, text.encode(), python_scan.scan(text))


def test_a_draw_is_the_same_each_time_and_takes_operators_in_turn() -> None:
    mutants = mutants_of("src/net/a.cpp", 50) + mutants_of("src/fabric/b.cpp", 50)
    drawn = sweep.draw(mutants, total=36)
    assert drawn == sweep.draw(reversed(mutants), total=36)
    assert [len(drawn[part]) for part in ("net", "fabric", "control")] == [4, 4, 0]
    assert len({m.operator for m in drawn["net"][:3]}) == 3
    assert drawn != sweep.draw(mutants, seed="another", total=36)


def test_a_sample_is_of_few_files_and_other_ones_for_another_commit() -> None:
    mutants = [m for n in range(20) for m in mutants_of(f"src/net/{n}.cpp", 9)]
    drawn = sweep.sample(mutants, "abc")
    assert drawn == sweep.sample(reversed(mutants), "abc")
    assert len({m.file for m in drawn}) == sweep.FILES_OF_SAMPLE
    assert len({m.file for m in drawn[: sweep.FILES_OF_SAMPLE]}) == sweep.FILES_OF_SAMPLE
    assert len(drawn) == sweep.FILES_OF_SAMPLE * sweep.MUTANTS_OF_FILE
    assert drawn != sweep.sample(mutants, "abd")


def test_a_ledger_resumes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ledger.tsv"
    ledger = sweep.Ledger(path)
    ledger.add(
        sweep.Row("src/net/b.cpp swap 00000000.1", "survived", "3 of 3 tests", 12, 1.5, "abc")
    )
    ledger.add(sweep.Row("src/net/a.cpp swap 00000000.1", "caught", "net_test A.B", 0, 0.1, "abc"))
    again = sweep.Ledger(path)
    assert again.rows == ledger.rows
    assert len(path.read_text().splitlines()) == 3
    assert again.forget_gone({"src/net/a.cpp swap 00000000.1"}) == 1
    assert list(again.rows) == ["src/net/a.cpp swap 00000000.1"]


def test_results_count_what_was_run(tmp_path: pathlib.Path) -> None:
    ledger = sweep.Ledger(tmp_path / "ledger.tsv")
    mutants = mutants_of("src/net/a.cpp", 4)
    drawn = sweep.draw(mutants)
    names = [m.name for m in drawn["net"]]
    ledger.add(sweep.Row(names[0], "caught"))
    ledger.add(sweep.Row(names[1], "survived"))
    ledger.add(sweep.Row(names[2], "unreached"))
    rows = sweep.results(drawn, ledger, {names[1]: "The same result."})
    assert rows[0] == {"folder": "src/net", "drawn": 3, "caught": 1, "equivalent": 1, "survived": 1}
    assert json.loads(sweep.results_text(rows, {}))["rows"] == rows


def test_explanations_name_lines_that_exist(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.cpp").write_text("  return a < b;\n")
    name = f"a.cpp compare {schemata.line_hash('return a < b;')}.1"
    assert sweep.has_line(name, tmp_path)
    assert not sweep.has_line("a.cpp compare 00000000.1", tmp_path)
    listing = tmp_path / "equivalent.txt"
    listing.write_text(f"# comment\n{name}: Both are never equal.\n")
    assert sweep.equivalents(listing) == {name: "Both are never equal."}
    listing.write_text("a.cpp:12: no hash\n")
    with pytest.raises(SystemExit):
        sweep.equivalents(listing)
