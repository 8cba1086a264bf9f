"""The README's example does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_first_example_runs(tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    program = tmp_path / "example.py"
    program.write_text(example[1], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    # Four ranks' errors: half of x twice over is x again, but for rounding.
    errors = [float(number) for number in re.findall(r"\d+\.\d+", done.stdout)]
    assert len(errors) == 4
    assert max(errors) < 0.05
