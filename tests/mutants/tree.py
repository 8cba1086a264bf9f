"""Writes and builds the tree in which the chosen mutants are compiled.

build/mutants/tree is a copy of the sources in which each file with chosen mutants holds them. It is
built in its folder build/host with the options of `./run test`, so the compiler's cache serves
every file that holds no mutant and includes none. Mutants that do not compile are found from the
compiler's complaints, or by halving, and left out.
"""

import ast
import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable

import python_scan
import schemata
from parts import BUILD, HERE, PARTS, ROOT, part_of, sources
from schemata import Change, Mutant, Rewritten

TREE = BUILD / "tree"
OBJECTS = TREE / "build" / "host"  # As deep in its tree as in any other: the cache asks for that.
ROUNDS = 40  # Of building and leaving out; each finds what the one before it hid.
OPTIONS = (
    f"-DTOKENYARD_WERROR={os.environ.get('TOKENYARD_WERROR', 'OFF')}",
    "-DTOKENYARD_CUDA=OFF", "-DTOKENYARD_PYTHON=ON", "-DTOKENYARD_UNITY=ON",
)  # fmt: skip
STATES = "src/base/zz_mutants.cpp"  # All parts use its part. The last name moves no unity batch.
LEFT_OUT = ("bench/results/", "tests/mutants/")


def interpreter() -> str:
    """Returns the Python that has what the tests of the package need: this one or the one named."""
    return os.environ.get("TOKENYARD_MUTANTS_PYTHON", sys.executable)


def note(text: str) -> None:
    """Tells the user how far things are."""
    print(text, file=sys.stderr, flush=True)


# ---- scanning -----------------------------------------------------------------------------------


def _version(*paths: pathlib.Path) -> str:
    """Returns a hash of what programs do, whatever their layout and comments."""
    dumps = "\n".join(ast.dump(ast.parse(path.read_text())) for path in paths)
    return hashlib.sha1(dumps.encode()).hexdigest()[:16]


def configure(source: pathlib.Path, binary: pathlib.Path) -> None:
    """Configures a build once."""
    if (binary / "build.ninja").exists():
        return
    binary.mkdir(parents=True, exist_ok=True)
    command = ["cmake", "-S", str(source), "-B", str(binary), "-G", "Ninja", *OPTIONS]
    command.append(f"-DPython_EXECUTABLE={interpreter()}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"cmake failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def scan(parts: Iterable[str]) -> dict[str, list[Mutant]]:
    """Returns the mutants of each file of the parts. Unchanged files are not parsed again."""
    kept_in = BUILD / "scan.json"
    kept = json.loads(kept_in.read_text()) if kept_in.exists() else {}
    version = _version(*sorted(HERE.glob("cpp_scan/*.py")), HERE / "python_scan.py")
    if kept.get("version") != version:
        kept = {"version": version, "files": {}, "units": {}}
    wanted = [name for name in sources() if part_of(name) in set(parts)]
    texts = {name: (ROOT / name).read_bytes() for name in wanted}
    digests = {name: hashlib.sha1(text).hexdigest()[:16] for name, text in texts.items()}

    def is_known(name: str) -> bool:
        return kept["files"].get(name, {}).get("digest") == digests.get(name)

    def keep(name: str, changes: Iterable[Change]) -> None:
        rows = [dataclasses.astuple(change) for change in sorted(changes)]
        kept["files"][name] = {"digest": digests[name], "changes": rows}

    for name in wanted:
        if name.endswith(".py") and not is_known(name):
            keep(name, python_scan.scan(texts[name].decode()))
    missing = {name for name in wanted if not is_known(name)}
    if missing:
        _scan_cpp(missing, kept["units"], keep)
        kept_in.write_text(json.dumps(kept))
    found = {}
    for name in wanted:
        if is_known(name):
            changes = [Change(*row) for row in kept["files"][name]["changes"]]
            found[name] = schemata.named(name, texts[name], changes)
    return found


def _scan_cpp(missing: set[str], units: dict[str, list[str]], keep) -> None:
    import cpp_scan

    configure(ROOT, BUILD / "scan")
    prefix = f"{ROOT}/"
    left = set(missing)
    folders = tuple(PARTS.values())
    reader = cpp_scan.Scanner(
        lambda path: path.startswith(prefix) and path[len(prefix) :] in missing
    )
    for source, arguments in cpp_scan.units(BUILD / "scan" / "compile_commands.json"):
        short = source.removeprefix(prefix).removeprefix("build/mutants/scan/")
        if not short.startswith(folders) or not left:
            continue
        known = units.get(source)
        if known is not None and not left.intersection(known):
            continue
        before = set(reader.files)
        held = {
            os.path.normpath(path).removeprefix(prefix) for path in reader.read(source, arguments)
        }
        fresh = [path.removeprefix(prefix) for path in set(reader.files) - before]
        for name in fresh:
            keep(name, reader.files[prefix + name].changes)
        # All of them: another part's scan must know where its files are.
        units[source] = sorted(name for name in held if part_of(name))
        left -= set(fresh)
        note(f"read {short}: {len(fresh)} files")
    for complaint in reader.complaints[:20]:
        note(f"libclang: {complaint}")


# ---- what a file costs ---------------------------------------------------------------------------

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_FOLDERS = ("src", "include", "tests", ".", "python/bindings")  # Of the include path.


def _included(path: pathlib.Path) -> set[pathlib.Path]:
    """Returns the files of the tree that a file includes itself."""
    found = set()
    for name in _INCLUDE.findall(path.read_bytes()) if path.exists() else []:
        for folder in (path.parent, *(ROOT / folder for folder in _FOLDERS)):
            if (folder / name.decode()).is_file():
                found.add((folder / name.decode()).resolve())
                break
    return found


def units_of_files() -> collections.Counter[str]:
    """Returns for each file of the tree how many translation units hold it."""
    configure(ROOT, BUILD / "scan")
    known: dict[pathlib.Path, set[pathlib.Path]] = {}
    count: collections.Counter[str] = collections.Counter()
    for entry in json.loads((BUILD / "scan" / "compile_commands.json").read_text()):
        held: set[pathlib.Path] = set()
        left = [pathlib.Path(entry["file"])]
        while left:
            path = left.pop()
            if path in held:
                continue
            held.add(path)
            if path not in known:
                known[path] = _included(path)
            left += known[path]
        count.update(str(path.relative_to(ROOT)) for path in held if path.is_relative_to(ROOT))
    return count


# ---- writing ------------------------------------------------------------------------------------


def _write(path: pathlib.Path, text: bytes) -> bool:
    """Writes a file where its text is another one: nothing is compiled anew without a reason."""
    if path.exists() and path.read_bytes() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return True


class Tree:
    """The mutants of some parts, those of them that a build holds, and the rewritten sources."""

    def __init__(self, mutants: dict[str, list[Mutant]]) -> None:
        self.mutants = {file: those for file, those in sorted(mutants.items()) if those}
        self._dropped_in = BUILD / "dropped.json"
        self.dropped: dict[str, str] = {}  # Names of mutants that do not compile, and why not.
        if self._dropped_in.exists():
            self.dropped = json.loads(self._dropped_in.read_text())
        self.rewritten: dict[str, Rewritten] = {}
        self.choose(mutant.name for those in self.mutants.values() for mutant in those)

    def choose(self, names: Iterable[str]) -> None:
        """Makes a build hold these mutants and no others; their order numbers them.

        Names of mutants that are no more keep their numbers, so a build that grows leaves files
        alone that have no new mutants.
        """
        self._numbers = {name: number for number, name in enumerate(names)}
        self.chosen = {
            file: kept
            for file, those in self.mutants.items()
            if (kept := [mutant for mutant in those if mutant.name in self._numbers])
        }
        self.bytes = (len(self._numbers) + 1 + 4095) // 4096 * 4096
        digest = hashlib.sha1("\n".join(self._numbers).encode())
        self.stamp = digest.hexdigest()[:16]  # Of the numbers: they differ from choice to choice.

    def number(self, mutant: Mutant) -> int:
        """Returns the number by which a chosen mutant is switched on."""
        return self._numbers[mutant.name]

    def holds(self, mutant: Mutant) -> bool:
        """Returns whether a build has the mutant."""
        return mutant.name in self._numbers and mutant.name not in self.dropped

    def all(self) -> list[Mutant]:
        """Returns the mutants that compile, as far as is known."""
        return [m for those in self.mutants.values() for m in those if m.name not in self.dropped]

    def drop(self, mutant: Mutant, why: str) -> None:
        """Leaves a mutant out, for it does not compile."""
        self.dropped[mutant.name] = schemata.shown(why, 160)

    def write_file(self, file: str, only: set[str] | None = None) -> None:
        """Writes one rewritten file: all its mutants, or those with the names given."""
        text = (ROOT / file).read_bytes()
        those = [
            m for m in self.chosen[file]
            if m.name not in self.dropped and (only is None or m.name in only)
        ]  # fmt: skip
        if file.endswith(".py"):
            done = schemata.rewrite(
                text, those, lambda m: f"_mutant_on({self.number(m)})", python=True
            )
            _write(TREE / file, with_import(text, done.text))
            return
        done = schemata.rewrite(
            text, those, lambda m: f"TOKENYARD_MUTANT(mutants_states,{self.number(m)})"
        )
        self.rewritten[file] = done
        head = (
            f'#include "{TREE}/tests/mutants/runtime.hpp"\n'
            'extern "C" __attribute__((visibility("hidden"))) unsigned char mutants_states[];\n'
            # The flag 3 says that a system's header begins here: a mutant may leave a variable
            # unused, and the files around are compiled with the flags that the cache knows.
            f'# 1 "{TREE / file}" 3\n'
        )
        _write(TREE / file, head.encode() + done.text)

    def write(self) -> None:
        """Writes the whole tree."""
        states = f"#define MUTANTS_BYTES {self.bytes}\n" + (HERE / "runtime.cpp").read_text()
        added = {
            "tests/mutants/runtime.hpp": (HERE / "runtime.hpp").read_bytes(),
            "tests/mutants/CMakeLists.txt": b"",
            "python/tokenyard_mutants.py": (HERE / "runtime.py").read_bytes(),
            STATES: states.encode(),
        }
        names = {name for name in sources() if not name.startswith(LEFT_OUT)}
        for name in names - set(self.chosen):
            _write(TREE / name, (ROOT / name).read_bytes())
        for file in self.chosen:
            self.write_file(file)
        for name, text in added.items():
            _write(TREE / name, text)
        for path in TREE.rglob("*"):
            name = str(path.relative_to(TREE))
            hidden = name.startswith((".", "build/")) or "__pycache__" in name
            if path.is_file() and not hidden and name not in names and name not in added:
                path.unlink()
        if not (TREE / ".git").exists():  # Some tests ask git for the files of the tree.
            subprocess.run(["git", "init", "-q"], cwd=TREE, check=True)


def with_import(original: bytes, text: bytes) -> bytes:
    """Returns rewritten Python with the switch's import, after the docstring and __future__."""
    lines = original.decode().split("\n")
    for node in ast.parse(original).body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if not docstring and not future:
            # Nothing before the first statement is rewritten, so its line is where it was.
            row = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
            break
    else:
        return text
    head = len("\n".join(lines[:row]).encode()) + (1 if row else 0)
    return text[:head] + b"from tokenyard_mutants import on as _mutant_on\n" + text[head:]


# ---- building -----------------------------------------------------------------------------------

_PLACE = re.compile(r"^(?:In file included from |\s+from )?(/[^:\s]+):(\d+):(?:(\d+):)? ?(.*)")


@dataclasses.dataclass
class _Complaint:
    message: str
    places: list[tuple[str, int, int]]  # The first is the error's own.


def complaints(log: str) -> list[_Complaint]:
    """Returns the compiler's errors, each with the places of the lines that explain it."""
    found: list[_Complaint] = []
    waiting: list[tuple[str, int, int]] = []  # "required from" stands before its error.
    for line in log.splitlines():
        match = _PLACE.match(line)
        if not match:
            continue
        place = (match[1], int(match[2]), int(match[3] or 0))
        rest = match[4]
        if rest.startswith(("error:", "fatal error:")):
            found.append(_Complaint(rest, [place, *reversed(waiting)]))
            waiting = []
        elif "required from" in rest or "in 'constexpr' expansion" in rest:
            waiting.append(place)
        elif rest.startswith("note:") and found:
            found[-1].places.append(place)
    return found


def leave_out(tree: Tree, log: str) -> int:
    """Drops the mutants that errors are about. Returns how many."""
    prefix = f"{TREE}/"
    dropped: dict[str, Mutant] = {}
    for complaint in complaints(log):
        for find in (_at_place, _at_line):
            guilty: list[Mutant] = []
            for path, line, column in complaint.places:
                rewritten = tree.rewritten.get(os.path.normpath(path).removeprefix(prefix))
                if rewritten is not None:
                    guilty = find(rewritten, line, column)
                if guilty:
                    break
            if guilty:
                break
        for mutant in guilty:
            dropped[mutant.name] = mutant
            tree.drop(mutant, complaint.message)
    for file in {mutant.file for mutant in dropped.values()}:
        tree.write_file(file)
    return len(dropped)


def _at_place(rewritten: Rewritten, line: int, column: int) -> list[Mutant]:
    return schemata.culprits(rewritten, line, column) if column else []


def _at_line(rewritten: Rewritten, line: int, _column: int) -> list[Mutant]:
    return schemata.on_line(rewritten, line)


def halve(tree: Tree, file: str, compiles) -> int:
    """Finds by halving the mutants of a file without which `compiles()` is true, and drops them."""
    names = [m.name for m in tree.chosen[file] if m.name not in tree.dropped]
    by_name = {m.name: m for m in tree.chosen[file]}
    good: set[str] = set()
    tree.write_file(file, good)
    if not compiles():
        tree.write_file(file)
        return 0
    bad = []

    def search(some: list[str]) -> None:
        tree.write_file(file, good | set(some))
        if compiles():
            good.update(some)
        elif len(some) == 1:
            bad.append(some[0])
        else:
            middle = len(some) // 2
            search(some[:middle])
            search(some[middle:])

    search(names)
    for name in bad:
        tree.drop(by_name[name], "found by halving")
    tree.write_file(file)
    return len(bad)


def _failed_commands(log: str) -> list[str]:
    """Returns the compiler's commands that failed, as ninja prints them."""
    lines = log.splitlines()
    return [lines[at + 1] for at, line in enumerate(lines[:-1]) if line.startswith("FAILED:")]


def _halve_failed(tree: Tree, log: str) -> int:
    count = 0
    for command in _failed_commands(log):
        words = shlex.split(command)
        if "-c" not in words:
            continue
        words = [w for w in words if not w.endswith("ccache")]
        at = words.index("-o")
        del words[at : at + 2]

        def compiles(words: list[str] = words) -> bool:
            done = subprocess.run(
                [*words, "-fsyntax-only"], cwd=OBJECTS, capture_output=True, check=False
            )
            return done.returncode == 0

        listing = subprocess.run(
            [*words, "-MM"], cwd=OBJECTS, capture_output=True, text=True, check=False
        )
        used = {
            os.path.normpath(OBJECTS / w).removeprefix(f"{TREE}/") for w in listing.stdout.split()
        }
        for file in sorted(used & set(tree.chosen)):
            found = halve(tree, file, compiles)
            count += found
            if found:
                break
    return count


def build(tree: Tree, targets: list[str], jobs: int) -> None:
    """Builds the targets. Mutants that do not compile are left out until the rest does."""
    configure(TREE, OBJECTS)
    environment = {**os.environ, "CCACHE_BASEDIR": str(TREE), "CCACHE_NOHASHDIR": "1"}
    for turn in range(ROUNDS):
        done = subprocess.run(
            ["ninja", "-C", str(OBJECTS), "-j", str(jobs), "-k0", *targets],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        (BUILD / f"build-{turn}.log").write_text(done.stdout + done.stderr)
        if done.returncode == 0:
            break
        count = leave_out(tree, done.stdout) or _halve_failed(tree, done.stdout)
        tree._dropped_in.write_text(json.dumps(tree.dropped, indent=0))
        note(f"round {turn + 1}: {count} mutants do not compile and are left out")
        if count == 0:
            raise SystemExit(f"The tree does not build; see {BUILD}/build-{turn}.log")
    else:
        raise SystemExit(f"The tree does not build after {ROUNDS} rounds")
    check_python(tree)
    tree._dropped_in.write_text(json.dumps(tree.dropped, indent=0))


def check_python(tree: Tree) -> None:
    """Leaves out the mutants with which a Python file cannot be parsed."""
    for file in tree.chosen:
        if not file.endswith(".py"):
            continue

        def parses(file: str = file) -> bool:
            try:
                compile((TREE / file).read_bytes(), file, "exec")
            except SyntaxError:
                return False
            return True

        if not parses():
            note(f"{file}: {halve(tree, file, parses)} mutants cannot be parsed and are left out")


def counts(tree: Tree) -> dict[str, collections.Counter[str]]:
    """Returns how many mutants a build has of each part, by operator; or "does not compile"."""
    found: dict[str, collections.Counter[str]] = {}
    for file, those in tree.chosen.items():
        part = found.setdefault(str(part_of(file)), collections.Counter())
        for mutant in those:
            part["does not compile" if mutant.name in tree.dropped else mutant.operator] += 1
    return found


def clear() -> None:
    """Removes the tree and its build; what is known of sources and mutants stays."""
    for folder in (TREE, OBJECTS):
        shutil.rmtree(folder, ignore_errors=True)
