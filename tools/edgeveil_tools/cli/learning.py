"""Handlers of `check | run | report | predict | backbone`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil.errors import UsageError
from edgeveil.logs import printable
from edgeveil_tools.cli.common import answer

if TYPE_CHECKING:
    from edgeveil_edge.predict import Predictions


_OVERRIDES = ("broker", "devices", "workers", "seed", "simulate", "data", "accept_unprotected")


def check(args: argparse.Namespace) -> int:
    if args.schema is not None:
        from edgeveil_tools.checks import schema

        print(json.dumps(schema(args.schema), indent=2))
        return 0
    if not args.files:
        from edgeveil_tools.setup.doctor import command

        return command(args)
    from edgeveil_tools.checks import command as check_files

    return check_files(args)


def run(args: argparse.Namespace) -> int:
    from edgeveil.config.file import read

    read(args.job)  # a missing file is known before seconds of imports
    from edgeveil_tools.local.run import run_local

    found = vars(args)
    overrides: Any = {"ray_address": args.ray, **{key: found[key] for key in _OVERRIDES}}
    out = args.out or Path("out") / args.job.stem
    how = {key: found[key] for key in ("keep", "reference", "record", "force", "track")}
    how |= {"as_json": args.json, "command": args.command_line}
    if args.seeds is not None or args.sweep:
        from edgeveil_tools.local.grid import run_grid

        seeds = 1 if args.seeds is None else args.seeds
        return run_grid(args.job, out, overrides, seeds, args.sweep, **how)
    return run_local(args.job, out, overrides, **how)


def report(args: argparse.Namespace) -> int:
    from edgeveil_tools.report.compare import report as draw

    return draw(args.folders, args.out, as_json=args.json)


def backbone(args: argparse.Namespace) -> int:
    from edgeveil.parts.features.onnx import cached_backbone
    from edgeveil_tools.backbone.command import file_lines, train

    found = train(args.out or cached_backbone(args.what), seed=args.seed, force=args.force)
    return answer(args, file_lines(found), found)


def predict(args: argparse.Namespace) -> int:
    """Run `edgeveil predict`, printing rows one at a time as there may be millions."""
    from edgeveil_edge.predict import predict as use
    from edgeveil_edge.predict import rollback

    if args.rollback:
        release = rollback(args.model)
        return answer(args, [f"now in use: {release}"], {"model": str(release)})
    if args.input is None:
        raise UsageError("no records given", where="edgeveil predict", fix="name a file of records")
    found = use(args.model, args.input, personal=args.personal)
    for line in (*([found.stale] if found.stale else ()), *found.notes, *map(_count, found.unread)):
        print(printable(f"edgeveil: {line}"), file=sys.stderr)
    if args.json:
        right = dict(found.errors or {})
        if found.accuracy is not None:
            right |= {"accuracy": found.accuracy, **found.baselines}
        about = {"model": found.model, "notes": list(found.notes), "unread": found.unread}
        head = json.dumps({"command": "predict", "ok": True, **right, **about})
        print(f'{head[:-1]}, "predictions": [', end="")
        for at, plain in enumerate(found.plain_rows()):
            print(", " * (at > 0) + json.dumps(plain), end="")
        print("]}")
        return 0
    for line in _prediction_lines(found):
        print(line)
    return 0


def _count(unread: dict[str, Any]) -> str:
    counts = ", ".join(f"{n} {key}" for key, n in unread.items() if n and key != "name")
    return f"column '{unread['name']}': {counts}"


def _prediction_lines(found: Predictions) -> Iterator[str]:
    from edgeveil.evaluation.figures import RMSE, leading_text
    from edgeveil_tools.result import figures_text, share_text

    yield f"model {found.model}"
    for row in found.table_rows():
        at = row.get("file", f"{row['record']:>6}")
        if row.get("score", row.get("label", row.get("value"))) is None:
            yield f"{at}  not a usable record"
        elif "score" in row:
            yield f"{at}  {row.get('name', 'score'):9}  {row['score']:.4g}"
        elif "value" in row:
            yield f"{at}  {row['value']:.6g}"
        else:
            name = row.get("name", f"class {row['label']}")
            yield printable(f"{at}  {name}  probability {row['probability']:.3f}")
    if found.accuracy is not None:
        yield f"accuracy: {found.accuracy:.4f} on the records that have a label; {found.baseline}"
    if found.scores is not None:
        if found.errors is not None:
            area = share_text(found.errors["auc"])
            yield f"AUC {area}, {figures_text(found.errors)} on the records that have a label"
        if not found.alarms:
            yield "no threshold: the scores only rank records, the most unusual first"
    elif found.errors is not None:
        rmse = leading_text(RMSE, found.errors["rmse"], found.errors)
        errors = f"MAE {found.errors['mae']:.4g}, RMSE {rmse}"
        yield f"{errors} on the records that have a label, clipped to the range"
