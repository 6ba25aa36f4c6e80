"""`edgeveil methods | backbone`: what a job file may name."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgeveil_tools.cli.common import Subparsers, command

if TYPE_CHECKING:
    from edgeveil_tools.backbone.command import BackboneFacts, WeightFacts


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    _add_methods(commands)
    _add_backbone(commands)


def _add_methods(commands: Subparsers) -> None:
    methods = command(
        commands,
        "methods",
        "list the names that a job may use, with their privacy status",
        about=(
            "Lists training methods, update stages, aggregation rules, models, features, data\n"
            "sources, partitions, evaluations, mechanisms, shuffles and presets: source, needs,\n"
            "what each reveals, and whether its guarantee is proven, claimed or none.\n"
            "`check` plays the laws of its family on each named part, and exits with 1 where one\n"
            "is broken; `digest` prints what lets a device import a plug-in, and imports nothing."
        ),
        examples=(
            "edgeveil methods\n"
            "edgeveil methods fm min_divergence\n"
            "edgeveil methods aggregation --json\n"
            "edgeveil methods check krum\n"
            "edgeveil methods digest my-rules"
        ),
    )
    methods.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a name, or a family of names; `check NAME`, `digest NAME`",
    )
    methods.add_argument("--json", action="store_true", help="print JSON")
    methods.set_defaults(handler=_methods)


def _methods(args: argparse.Namespace) -> int:
    from edgeveil_tools.methods import check, digests, methods

    if args.names[:1] == ["check"]:
        return check(args.names[1:], as_json=args.json)
    if args.names[:1] == ["digest"]:
        return digests(args.names[1:], as_json=args.json)
    return methods(args.names, as_json=args.json)


def _add_backbone(commands: Subparsers) -> None:
    backbone = command(
        commands,
        "backbone",
        "train the public encoders, export or look at a backbone",
        examples=(
            "edgeveil backbone train pictures\n"
            "edgeveil backbone export --from mypackage.models:Encoder --weights encoder.pt"
            " --input-shape 1,28,28 --out encoder.onnx\n"
            "edgeveil backbone show model.onnx --json"
        ),
    )
    parts = backbone.add_subparsers(title="sub-commands", metavar="SUB-COMMAND", required=True)
    train = command(
        parts,
        "train",
        "train the encoder that jobs name `file: digits` or `file: pictures`",
        about=(
            "Learns from public images alone. `digits` (28 x 28): digits drawn from pen strokes,\n"
            "and those that ship with scikit-learn; some minutes. `pictures` (colour, 32 x 32):\n"
            "pictures drawn by a rule, told apart by themselves; about 20 minutes on two cores.\n"
            "Lies in the user's cache afterwards."
        ),
        examples="edgeveil backbone train\nedgeveil backbone train pictures --seed 3",
    )
    train.add_argument(
        "name",
        nargs="?",
        choices=("digits", "pictures"),
        default="digits",
        metavar="NAME",
        help="digits (default) or pictures",
    )
    train.add_argument("--out", type=Path, metavar="FILE", help="instead of the user's cache")
    train.add_argument("--force", action="store_true", help="train again, write over the file")
    train.add_argument("--seed", type=int, default=0, metavar="N", help="default 0")
    train.set_defaults(handler=_train)
    show = command(
        parts,
        "show",
        "print the digest and shapes of a backbone, or the digest and size of weights",
        about=(
            "Checks an ONNX file, or a state_dict (.safetensors, .pt), as a job does that names it."
        ),
        examples="edgeveil backbone show ~/.cache/edgeveil/backbones/digits.onnx",
    )
    show.add_argument(
        "file", type=Path, metavar="FILE", help="ONNX file, state_dict, `digits` or `pictures`"
    )
    show.set_defaults(handler=_show, extra="infer")
    export = command(
        parts,
        "export",
        "write a torch.nn.Module as the ONNX file of a frozen backbone",
        about=(
            "Calls module:function without arguments, loads the weights, traces it in eval mode.\n"
            "Its outputs are the features. The code runs here alone: devices run the ONNX file."
        ),
        examples=(
            "edgeveil backbone export --from mypackage.models:Encoder --weights encoder.pt"
            " --input-shape 1,28,28 --out encoder.onnx"
        ),
    )
    export.add_argument(
        "--from",
        dest="function",
        required=True,
        metavar="MODULE:FUNCTION",
        help="what gives the module, a class or a function, installed or in this folder",
    )
    export.add_argument(
        "--weights", type=Path, metavar="FILE", help="state_dict, .safetensors or .pt; else its own"
    )
    export.add_argument(
        "--input-shape",
        required=True,
        type=_shape,
        metavar="N,N,...",
        help="shape of one record, without the batch axis, as 1,28,28",
    )
    export.add_argument("--out", required=True, type=Path, metavar="FILE", help="the ONNX file")
    export.set_defaults(handler=_export)
    for part in (train, show, export):
        part.add_argument("--json", action="store_true", help="print JSON")


def _train(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from edgeveil.parts.features.onnx import cached_backbone
    from edgeveil_tools.backbone.command import train

    path = args.out or cached_backbone(args.name)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training", total=1.0)
        found = train(
            path,
            args.name,
            seed=args.seed,
            force=args.force,
            on_progress=lambda share: progress.update(task, completed=share),
        )
    _print(found, as_json=args.json)
    return 0


def _shape(text: str) -> tuple[int, ...]:
    sides = tuple(int(side) for side in text.split(","))
    if min(sides) < 1:
        raise ValueError(text)
    return sides


def _export(args: argparse.Namespace) -> int:
    from edgeveil_tools.backbone.export import export

    found = export(args.function, args.input_shape, args.out, args.weights)
    _print(found, as_json=args.json)
    return 0


def _show(args: argparse.Namespace) -> int:
    from edgeveil.parts.features.onnx import backbone_path
    from edgeveil.parts.models.state_dict import SUFFIXES
    from edgeveil_tools.backbone.command import facts, weight_facts

    if args.file.suffix in SUFFIXES:
        _print(weight_facts(args.file), as_json=args.json)
    else:
        _print(facts(backbone_path(str(args.file), Path.cwd())), as_json=args.json)
    return 0


def _print(found: BackboneFacts | WeightFacts, *, as_json: bool) -> None:
    import json
    from dataclasses import asdict

    if as_json:
        print(json.dumps(asdict(found)))
        return
    print(f"{found.path}: {found.form}")
    print(f"{found.size_bytes} bytes, SHA-256 {found.sha256}")
