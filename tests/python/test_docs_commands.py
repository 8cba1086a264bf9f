"""Commands in the documentation exist, and so do their options.

Nothing is run but `--help`, since the commands themselves install, build, measure or need GPUs.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from pages import PAGES, blocks_of, text_of
from programs import ROOT, run_python

BEGINS = r"(?:(?:\./run|python|pytest|pip|cmake)\b(?!/)|build/host\b)"


def commands() -> list[tuple[str, str]]:
    """Page and command: lines of sh blocks, indented lines, and code within sentences."""
    found = []
    for page in PAGES:
        told = "".join(block.code for block in blocks_of(page, "sh"))
        prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
        told += "\n".join(re.findall(rf"^    ({BEGINS}.*)$", prose, re.MULTILINE)) + "\n"
        told += "\n".join(
            " ".join(span.split()) for span in re.findall(rf"`({BEGINS}[^`]*)`", prose)
        )
        found += [(page, line) for line in told.splitlines() if shlex.split(line, comments=True)]
    return list(dict.fromkeys(found))


def sources(*patterns: str) -> str:
    paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths if path.is_file())


def help_of(*program: str | Path) -> str:
    done = run_python(*program, "--help")
    assert done.returncode == 0, done.stderr
    return done.stdout


def where_options_stand(words: list[str]) -> str:
    """Returns the help of a command, or its sources if the help would build it."""
    match words:
        case ["python", "-m", module, *rest]:
            return help_of("-m", module, *rest[:1])
        case ["python", "-c", program]:
            compile(program, "of the page", "exec")
            return ""
        case ["python", file, *_]:
            if "import torch" in sources(file) and importlib.util.find_spec("torch") is None:
                pytest.skip("needs torch")
            return help_of(ROOT / file)
        case ["pytest", file, *_]:
            assert (ROOT / file).is_file()
            return sources("tests/python/conftest.py")
        case ["pip", "install", *what]:
            own = [name.partition("[") for name in what if name.startswith(".")]
            assert all((ROOT / name / "pyproject.toml").is_file() for name, _, _ in own)
            extras = [extra.rstrip("]") for _, _, extra in own if extra]
            assert all(f"\n{extra} = [" in sources("pyproject.toml") for extra in extras)
            return "--upgrade"
        case ["pip", "show", _]:
            return ""
        case ["./run", "bench", name, *_]:
            assert (ROOT / "bench" / f"{name}.cpp").is_file()
            return sources(f"bench/{name}.cpp", f"bench/{name}/*")
        case ["./run"] | ["./run", "--help"]:
            return sources("run")
        case ["./run", command, *rest]:
            told = subprocess.run([ROOT / "run"], capture_output=True, text=True, check=True).stdout
            assert re.search(rf"^  {command} ", told, re.MULTILINE), told
            if command == "simulate" and "--suite" in rest:
                suite = rest[rest.index("--suite") + 1]
                assert suite == "NAME" or re.search(
                    rf'"{suite}"', sources("tests/**/*simulation.cpp")
                )
            programs = ["tests/simulation/simulate.cpp", "tests/mutants/mutants.py"]
            programs += ["packaging/wheel.py"]
            return sources("run", *programs, "examples/moe_layer.py")
        case ["cmake", "--build", _, "--target", target]:
            assert re.search(rf"add_library\({target}\b", sources("src/**/CMakeLists.txt"))
            return "--build --target"
        case ["cmake", "-S", folder, *options]:
            assert (ROOT / folder / "CMakeLists.txt").is_file()
            for option in re.findall(r"-D(TOKENYARD_\w+)=", " ".join(options)):
                assert option in sources("CMakeLists.txt")
            return ""
        case ["cmake", *_]:  # tests/packages/cpp_package.py runs them.
            return "--build --install --prefix --component --strip"
        case ["sudo", "apt-get", "install", *packages]:
            assert set(packages) <= set(re.findall(r"[\w+-]+", sources("run")))
            return ""
        case ["python3", "-m", "venv", _] | [".", _]:  # As `./run wheel`'s tests do.
            return ""
        case ["docker", "build", "-f", file, *_]:
            assert (ROOT / file).is_file()
            return ""
        case ["docker", "run", *_]:
            return "--rm --shm-size"
        case ["export" | "g++", *_]:  # tests/packages/cpp_package.py runs the same.
            return sources("cmake/tokenyard.pc.in") + " --cflags --libs"
        case ["python"]:  # A name, such as that of a target of ./run fuzz.
            return ""
        case [program, *_] if program.startswith("build/fuzz/"):
            assert Path(program).name.startswith("fuzz_")
            return ""
        case [program] if program.startswith("build/examples/"):
            assert (ROOT / "examples" / "cpp" / f"{Path(program).name}.cpp").is_file()
            return ""
        case [program, *flags]:
            assert (ROOT / "tests" / Path(program).name.removesuffix("_test")).is_dir()
            (chosen,) = [flag for flag in flags if flag.startswith("--gtest_filter=")]
            for suite in re.findall(r"(\w+)\.", chosen):
                assert suite in {name for name, _ in cpp_tests()}
            return "--gtest_filter --gtest_also_run_disabled_tests"
    raise AssertionError(words)


@pytest.mark.parametrize(("page", "command"), commands())
def test_a_command_and_its_options_exist(page: str, command: str) -> None:
    words = shlex.split(command, comments=True)
    known = "--help " + where_options_stand(words)
    for option in [word.split("=")[0] for word in words if word.startswith("--")]:
        assert re.search(rf"{option}\b(?!-)", known), f"{page}: {option} of {command}"


def cpp_tests() -> set[tuple[str, str]]:
    text = sources("tests/**/*.cpp", "tests/**/*.hpp", "tests/**/*.cu")
    return set(re.findall(r"\bTEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", text))


THEIRS = {
    "test_destroy_and_reinit",
    "test_ep",
    "test_internode",
    "test_intranode",
    "test_recovery_p2p",
}
"""Of DeepEP and Mooncake."""
THEIR_FILES = {
    "tests/elastic/test_ep.py",
    "tests/legacy/test_internode.py",
    "tests/legacy/test_intranode.py",
}


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_are_there(page: str) -> None:
    """A path may leave out its first folders. PART, NAME and x stand for any name."""
    paths = re.findall(r"`([\w./-]+/[\w.-]+\.(?:hpp|cpp|cu|py|md|json))`", text_of(page))
    named = {path for path in paths if not re.search(r"PART|NAME|/x_", path)} - THEIR_FILES
    folders = ["src", "include", "tests", "python", "bench", "docs", "compat", "examples"]
    folders += ["cmake", "packaging"]
    files = [str(file.relative_to(ROOT)) for at in folders for file in (ROOT / at).rglob("*.*")]
    assert not {
        path for path in named if not any(f"/{file}".endswith(f"/{path}") for file in files)
    }


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_a_page_names_are_there(page: str) -> None:
    ours = cpp_tests()
    ours |= {(suite, "*") for suite, _ in ours}
    named = re.findall(r"`([A-Z]\w+)\.([A-Z]\w+|\*)`", text_of(page))
    assert set(named) <= ours
    functions = set(re.findall(r"def (test_\w+)", sources("tests/**/*.py")))
    files = {path.stem for path in ROOT.glob("tests/**/test_*.py")}
    assert set(re.findall(r"\btest_\w+", text_of(page))) <= functions | files | THEIRS
