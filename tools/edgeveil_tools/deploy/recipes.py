"""Recipes for fleet managers that install what they are given: balena and AWS IoT Greengrass.

They are documentation made for these very bundles: nobody but the manager can try them.
"""

from __future__ import annotations

from typing import Any

import yaml

from edgeveil.errors import UsageError
from edgeveil_tools.deploy.compose import PLACE
from edgeveil_tools.deploy.parties import DEVICE_IMAGES, DeployedParty


def _devices(parties: list[DeployedParty], target: str) -> list[DeployedParty]:
    for party in parties:
        if party.kind != "edge":
            raise UsageError(
                f"{party.name} is no device", where=target, fix="name bundles of devices alone"
            )
    return parties


def balena(parties: list[DeployedParty], *, tag: str) -> dict[str, str]:
    """One release for a fleet of boxes: the image that serves them all, and a volume that each box
    fills once."""
    names = [party.name for party in _devices(parties, "balena")]
    image = max((party.image for party in parties), key=DEVICE_IMAGES.index)
    service = {
        "image": f"edgeveil/{image}:{tag}",
        "command": ["edge", "--config", f"{PLACE}/edgeveil.yaml"],
        "restart": "always",
        "read_only": True,
        "tmpfs": ["/tmp"],  # noqa: S108 - the container's own
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "volumes": [f"edgeveil:{PLACE}"],
    }
    plan = {"version": "2.1", "services": {"edge": service}, "volumes": {"edgeveil": {}}}
    steps = f"""# balena

One release serves the fleet: `docker-compose.yml` is the same on every box, and a box is who its
volume says. The images are those of `edgeveil deploy containers`; push them where the boxes can
pull them, and correct `image`.

    balena push FLEET

Then hand each box its bundle once, over balena's own tunnel, and start it anew:

{_each(names)}
A later bundle is handed over in the same way: keys, ledger and the owner's policy stay. For boxes
that nobody has prepared take the bundle `image` and one claim each (docs/deploy.md).
"""
    return {"docker-compose.yml": _text(plan), "README.md": steps}


def _each(names: list[str]) -> str:
    lines = []
    for name in names:
        lines += [
            f"    # {name}",
            "    balena ssh UUID edge 'mkdir -p /tmp/bundle && tar -x -C /tmp/bundle'"
            f" < <(tar -c -C {name} .)",
            f"    balena ssh UUID edge 'edgeveil site install /tmp/bundle {PLACE}'",
            "",
        ]
    return "\n".join(lines)


def greengrass(parties: list[DeployedParty], *, tag: str) -> dict[str, str]:
    """A component recipe for each device: its bundle and the program as artifacts."""
    devices = _devices(parties, "greengrass")
    found = {f"{party.name}.recipe.yaml": _text(_component(party, tag)) for party in devices}
    zips = "".join(f"    (cd {party.name} && zip -r ../{party.name}.zip .)\n" for party in parties)
    found["README.md"] = f"""# AWS IoT Greengrass

One component for each device, since each has a bundle of its own; a thing group would share its
keys. Put the artifacts where the recipes look for them (correct BUCKET), then create the
components and deploy each to its own thing:

{zips}    aws s3 cp edgeveil-{tag}-py3-none-any.whl s3://BUCKET/edgeveil/
    for archive in *.zip; do aws s3 cp "$archive" s3://BUCKET/edgeveil/; done
    aws greengrassv2 create-component-version --inline-recipe fileb://NAME.recipe.yaml

Remove the archives once they are deployed: a new device's keys are in them. A component of a later
version brings a later bundle; keys, ledger and the owner's policy stay.
"""
    return found


def _component(party: DeployedParty, tag: str) -> dict[str, Any]:
    program, place = "{work:path}/venv/bin", "{work:path}/place"
    archive = "{artifacts:decompressedPath}/" + party.name
    wheel = f"edgeveil-{tag}-py3-none-any.whl"
    extra = party.image.removeprefix("edge-")
    install = (
        "python3 -m venv {work:path}/venv && "
        f"{program}/pip install '{{artifacts:path}}/{wheel}[{extra}]' && "
        f"{program}/edgeveil site install {archive} {place}"
    )
    run = f"exec {program}/edgeveil edge --config {place}/{party.config}"
    source = "s3://BUCKET/edgeveil"
    return {
        "RecipeFormatVersion": "2020-01-25",
        "ComponentName": f"edgeveil.{party.name}",
        "ComponentVersion": tag,
        "ComponentDescription": f"EdgeVeil device {party.name}",
        "ComponentPublisher": "EdgeVeil",
        "Manifests": [
            {
                "Platform": {"os": "linux"},
                "Artifacts": [
                    {"URI": f"{source}/{party.name}.zip", "Unarchive": "ZIP"},
                    {"URI": f"{source}/{wheel}"},
                ],
                "Lifecycle": {"install": {"Script": install, "Timeout": 900}, "run": run},
            }
        ],
    }


def _text(plan: dict[str, Any]) -> str:
    return yaml.safe_dump(plan, sort_keys=False, allow_unicode=True, width=1000)
