"""Installs wheels into fresh environments, and tests the package as it was installed.

    python tests/packages/python_package.py [WHEEL...] [--only SUITE]

Takes dist/*.whl if none are named. Each Python that packaging/wheel.py finds gets an environment of
its own for the newest wheel in each folder that fits it; so do the packages of compat/, if their
wheels are there.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
import home_page  # noqa: E402
import wheel as wheels  # noqa: E402  (packaging/wheel.py)

# Tests that need neither torch nor the tree around the package.
SUITES = (
    "test_world test_expert_parallel test_exchange_options test_kept_routes test_errors test_launch"
    " test_collectives test_collectives_errors test_task_graph test_integer_arguments"
)
COMPAT = {"tokenyard_deep_ep": "deep_ep", "tokenyard_mooncake": "mooncake"}
PIP = ("-m", "pip", "install", "-q", "--disable-pip-version-check")


def run(*command: object, cwd: pathlib.Path, **more: str) -> str:
    """Returns what a command printed; shows all of it and ends where it fails."""
    plain = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**plain, **more},
    )
    if done.returncode != 0:
        print("$", *command)
        print(done.stdout)
        sys.exit(f"it ended with {done.returncode}")
    return done.stdout


def fits(wheel: pathlib.Path, version: tuple[int, int]) -> bool:
    """Returns whether a wheel of tokenyard is for this Python."""
    if "-abi3-" in wheel.name:
        return version >= (3, 12)
    return f"-cp{version[0]}{version[1]}-" in wheel.name


def check_metadata(python: pathlib.Path, folder: pathlib.Path) -> None:
    """`pip show` names author, licence, home page and what the package is."""
    shown = run(python, "-m", "pip", "show", "--verbose", "tokenyard", cwd=folder)
    lines = ["Author: The Tokenyard authors", "Apache-2.0", "Summary: Token dispatch"]
    lines += [f"Homepage, {page}" for page in home_page.urls().values()]
    for line in lines:
        if line not in shown:
            sys.exit(f"pip show lacks {line!r}:\n{shown}")


def check_types(python: pathlib.Path, folder: pathlib.Path) -> None:
    """A user's script passes mypy --strict over the installed stubs; mistakes in it do not."""
    script = folder / "user.py"
    text = (ROOT / "tests" / "packages" / "user_script.py").read_text()
    script.write_text(text)
    checks = (python, "-m", "mypy", "--strict", "--cache-dir", folder / "mypy", script)
    run(*checks, cwd=folder)
    print("   ", run(python, script, cwd=folder).strip().splitlines()[-1])
    # An argument of the package's own, and a member of a class of the compiled module.
    for right, wrong in (("experts=", "expert="), (".peers", ".pears")):
        script.write_text(text.replace(right, wrong))
        done = subprocess.run([str(word) for word in checks], cwd=folder, capture_output=True)
        if wrong.strip("=.") not in done.stdout.decode():
            sys.exit(f"mypy accepts {wrong} for {right}: {done.stdout.decode()}")


def check_without_gpu(python: pathlib.Path, folder: pathlib.Path) -> None:
    """Without a driver the package works on the host, and says what a GPU's world lacks."""
    ask = "import tokenyard; tokenyard.launch(print, ranks=1, device='cuda', processes=False)"
    asked = subprocess.run([str(python), "-c", ask], cwd=folder, capture_output=True, text=True)
    said = asked.stderr.strip().splitlines()[-1]
    wanted = "no CUDA support" if "-DTOKENYARD_CUDA=ON" in said else "no NVIDIA driver"
    if asked.returncode == 0 or "Unsupported" not in said or wanted not in said:
        sys.exit(f"a world on a GPU, without one, ended with {asked.returncode}: {said}")
    print(f"    a world on a GPU: {said}")


def check_compat(python: pathlib.Path, folder: pathlib.Path, found: list[pathlib.Path]) -> None:
    """Each compat wheel installs beside the package, and names the library it stands in for."""
    for wheel in found:
        run(python, *PIP, "--no-deps", wheel, cwd=folder)
        name = COMPAT[wheel.name.split("-")[0]]
        ask = f"import importlib.util as u; print(u.find_spec({name!r}).origin)"
        origin = pathlib.Path(run(python, "-c", ask, cwd=folder).strip())
        doc = origin.read_text().split('"""')[1]
        if "stands in for" not in doc:
            sys.exit(f"{name} does not say what it stands in for")
        print(f"    {wheel.name}: installed as {name}")


def check_wheel(
    python: pathlib.Path,
    version: tuple[int, int],
    wheel: pathlib.Path,
    compat: list[pathlib.Path],
    files: list[pathlib.Path],
) -> None:
    """Installs a wheel into a fresh environment of this Python, and tests what is installed."""
    begun = time.monotonic()
    print(f"Python {version[0]}.{version[1]}: {wheel}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        run(python, "-m", "venv", folder / "venv", cwd=folder)
        inside = folder / "venv" / "bin" / "python"
        # An older pip does not show the field License-Expression.
        run(inside, *PIP, "--upgrade", "pip", cwd=folder)
        run(inside, *PIP, wheel, "pytest", "mypy==2.4.1", cwd=folder)
        where = run(inside, "-c", "import tokenyard; print(tokenyard.__file__)", cwd=folder)
        if not where.startswith(str(folder)):
            sys.exit(f"tokenyard comes from {where}")
        check_metadata(inside, folder)
        check_types(inside, folder)
        if not pathlib.Path("/dev/nvidiactl").exists():
            check_without_gpu(inside, folder)
        check_compat(inside, folder, compat)
        said = run(
            *(inside, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", ROOT / "tests" / "python", *files),
            cwd=folder,
        )
        print(f"    tests: {said.strip().splitlines()[-1]}")
    print(f"    {time.monotonic() - begun:.0f} s", flush=True)


def main() -> int:
    """Returns 0 if every Python's environment passes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=pathlib.Path, nargs="*")
    parser.add_argument("--only", metavar="SUITE", help="only this file of tests/python")
    options = parser.parse_args()
    found = [path.resolve() for path in options.wheel or sorted((ROOT / "dist").glob("*.whl"))]
    own = [path for path in found if path.name.startswith("tokenyard-")]
    compat = [path for path in found if path.name.split("-")[0] in COMPAT]
    if not own:
        sys.exit("no wheel in dist/: run packaging/wheel.py first")
    suites = [options.only] if options.only else SUITES.split()
    files = [ROOT / "tests" / "python" / f"{suite}.py" for suite in suites]
    for version, python in sorted(wheels.interpreters().items()):
        newest = {path.parent: path for path in own if fits(path, version)}
        if not newest:
            print(f"Python {version[0]}.{version[1]}: no wheel")
        for wheel in newest.values():
            check_wheel(python, version, wheel, compat, files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
