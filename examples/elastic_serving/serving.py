"""Serves three times, undisturbed and with a rank killed, and compares the answers."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from .front import Front, Run
from .rank import EXPERTS_PER_RANK
from .requests import answer_of
from .serving_plot import plot_serving


def serve(chosen: argparse.Namespace, replicas: bool, victim: int | None) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        return Front(Path(folder), chosen.ranks, chosen.steps, replicas).run(victim)


def run(chosen: argparse.Namespace) -> int:
    """Serves as the arguments say; returns the exit status."""
    experts, victim = EXPERTS_PER_RANK * chosen.ranks, chosen.ranks // 2
    print(f"{chosen.steps} steps on {chosen.ranks} ranks, undisturbed ...", flush=True)
    calm = serve(chosen, True, None)
    right = all(
        answer == answer_of(number, experts) and lost == 0
        for number, (answer, lost) in calm.answers.items()
    )
    print(f"  {len(calm.answers)} answers, {'all' if right else 'NOT all'} right")
    print(f"The same, with rank {victim} killed; each expert has a replica ...", flush=True)
    with_replicas = serve(chosen, True, victim)
    lacking, same = report_run(with_replicas, calm, experts)
    right &= same and lacking == 0
    print(f"The same without replicas, with rank {victim} killed ...", flush=True)
    without = serve(chosen, False, victim)
    lacking_without, same = report_run(without, calm, experts)
    right &= same and lacking_without > 0 and whole_again(without)

    runs = {"every expert has a replica": with_replicas, "no replicas": without}
    plot_serving(chosen.out / "serving.png", runs, chosen.ranks, experts)
    report = dict(
        ok=right,
        ranks=chosen.ranks,
        victim=victim,
        answers=len(with_replicas.answers),
        handed_again=with_replicas.handed_again,
        lacking=lacking,
        answers_without_replicas=len(without.answers),
        lacking_without_replicas=lacking_without,
        killed_at=with_replicas.killed_at,
        without_at=with_replicas.without_at,
        replaced_at=with_replicas.replaced_at,
        steps=len(with_replicas.seconds_of),
    )
    (chosen.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"See {chosen.out}/serving.png and report.json.")
    return 0 if right else 1


def report_run(struck: Run, calm: Run, experts: int) -> tuple[int, bool]:
    """Prints how a run went. Returns how many answers lack results, and whether all others are
    those of the undisturbed run."""
    lacking = {number for number, (_, lost) in struck.answers.items() if lost}
    same = all(
        struck.answers[number][0] == calm.answers.get(number, (answer_of(number, experts), 0))[0]
        for number in struck.answers
        if number not in lacking
    )
    every = set(struck.answers) == set(range(len(struck.answers)))
    ordinary = sorted(struck.seconds_of.values())[len(struck.seconds_of) // 2]
    assert struck.killed_at is not None
    assert struck.replaced_at is not None
    around = [struck.seconds_of.get(struck.killed_at + step, 0.0) for step in range(4)]
    print(
        f"  killed after step {struck.killed_at}: the next steps took up to "
        f"{1e3 * max(around):.1f} ms, where others take {1e3 * ordinary:.1f} ms"
    )
    print(
        f"  replaced in step {struck.replaced_at}, which took "
        f"{1e3 * struck.seconds_of[struck.replaced_at]:.1f} ms"
    )
    print(
        f"  {len(struck.answers)} answers, {'none' if every else 'SOME'} missing; {len(lacking)} "
        f"lack results of experts; the others are {'equal' if same else 'NOT equal'} to the "
        "undisturbed run's"
    )
    return len(lacking), same and every


def whole_again(struck: Run) -> bool:
    """Returns whether all experts answer at the end."""
    last = [rows for step, rows in sorted(struck.rows.items())[-20:-2]]
    answering = {expert for rows in last for (expert, _) in rows}
    before = {expert for rows in struck.rows.values() for (expert, _) in rows}
    return answering == before
