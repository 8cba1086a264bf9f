"""The README's example does what it says."""

from __future__ import annotations

import re
from pathlib import Path

from programs import ROOT, run_python

README = ROOT / "README.md"


def test_the_first_example_runs(tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    program = tmp_path / "example.py"
    program.write_text(example[1], encoding="utf-8")
    done = run_python(program)
    assert done.returncode == 0, done.stderr
    # Four ranks' errors: half of x twice over is x again, but for rounding.
    errors = [float(number) for number in re.findall(r"\d+\.\d+", done.stdout)]
    assert len(errors) == 4
    assert max(errors) < 0.05
