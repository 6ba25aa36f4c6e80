"""Site files, recognised by their one top-level key; only that role's schema is loaded."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil.config.file import only_block, parsed, problems_error, read
from edgeveil.config.yaml_tree import Problem, Tree
from edgeveil.errors import SystemFault

if TYPE_CHECKING:
    from edgeveil.config.broker import BrokerSite
    from edgeveil.config.cloud import CloudSite
    from edgeveil.config.edge import EdgeSite
    from edgeveil.config.policy import Policy
    from edgeveil.config.proxy import ProxySite

    Site = CloudSite | ProxySite | EdgeSite | BrokerSite

SITES = ("cloud", "proxy", "edge", "broker")
_OTHERS = ("policy", "fleet", "local", "load")
_OF_JOBS = ("job", "preset", "train", "privacy", "features")  # jobs have a `proxy` block too


def site_of(kind: str) -> type[Site]:
    module = import_module(f"edgeveil.config.{kind}")
    found: type[Site] = getattr(module, f"{kind.title()}Site")
    return found


def load_site(path: Path) -> Site:
    """Read a site file. Raises ConfigError with all problems; key files are checked at start."""
    tree = parsed(read(path), str(path))
    kind = kind_of(tree.value)
    if kind not in SITES:
        named = f"; this is a {kind} file" if kind in tree.value else ""
        text = f"not a site file, its top-level key must be one of: {', '.join(SITES)}{named}"
        raise problems_error(str(path), [Problem((), tree.line(()), text)])
    if kind == "edge":
        return _edge_site(tree, path)
    return only_block(site_of(kind), kind, tree, path)


def _edge_site(tree: Tree, path: Path) -> EdgeSite:
    from pydantic import TypeAdapter, ValidationError

    from edgeveil import plugins
    from edgeveil.config.edge import EdgeSite
    from edgeveil.config.policy import AllowedPlugin, Policy

    own = _policy_tree(tree, path)
    allowed: tuple[AllowedPlugin, ...] = ()
    with suppress(KeyError, TypeError, ValidationError):  # reported below with their lines
        policy = own[0].value["policy"] if own else tree.value["edge"]["policy"]
        allowed = TypeAdapter(tuple[AllowedPlugin, ...]).validate_python(policy["allowed_plugins"])
    with plugins.only(allowed):
        if own is not None:
            owners = only_block(Policy, "policy", *own)
            tree.value["edge"]["policy"] = owners.model_dump(mode="json")
        return only_block(EdgeSite, "edge", tree, path)


def load_policy(path: Path) -> Policy:
    """Read an owner's policy file. Raises ConfigError."""
    from edgeveil.config.policy import Policy

    return only_block(Policy, "policy", parsed(read(path), str(path)), path)


def _policy_tree(tree: Tree, path: Path) -> tuple[Tree, Path] | None:
    block = tree.value["edge"]
    named = block.get("policy_file") if isinstance(block, dict) else None
    if not isinstance(named, str) or not named:
        return None
    if "policy" in block:
        at = ("edge", "policy")
        text = "policy_file also contains a policy; remove one of the two"
        raise problems_error(str(path), [*tree.problems, Problem(at, tree.line(at), text)])
    file = path.absolute().parent / Path(named).expanduser()
    if not file.exists():
        fix = f"create the file, mount its disk, or change edge.policy_file in {path}"
        raise SystemFault("the owner's policy file is missing", where=str(file), fix=fix)
    found = parsed(read(file), str(file))
    if not isinstance(found.value, dict) or "policy" not in found.value:
        text = "not a policy file, its one top-level key must be policy"
        raise problems_error(str(file), [Problem((), found.line(()), text)])
    return found, file


def kind_of(value: Any) -> str:
    """Return a file's kind by its top-level keys; default `job`."""
    keys = set(value) if isinstance(value, dict) else set()
    found = [key for key in (*SITES, *_OTHERS) if key in keys]
    return found[0] if found and keys.isdisjoint(_OF_JOBS) else "job"
