"""A fleet's site folder, with a changed plan, and the folder's content."""

import yaml
from cryptography import x509

from edgeveil_tools.cli import main
from edgeveil_tools.site.fleet_site import FleetSite
from edgeveil_tools.site.fleet_spec import FLEET_FILE


def planned(folder, devices=3, *options):
    assert main(["site", "init", str(folder), "--devices", str(devices), *options]) == 0
    return folder


def opened(folder, word=None):
    return FleetSite(folder, lambda _path: word)


def shown(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def plan(folder, **changes):
    said = yaml.safe_load((folder / FLEET_FILE).read_text())
    for key, value in changes.items():
        block = said["fleet"].setdefault(key, {})
        said["fleet"][key] = block | value if isinstance(value, dict) else value
    (folder / FLEET_FILE).write_text(yaml.safe_dump(said, sort_keys=False))


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


class PowerFailure(BaseException):
    """No handler of errors sees it."""


def cut_after(whole, call, half=lambda *_: None):
    """Return `call`, which fails after `whole` calls, having done `half` of the next one."""
    left = iter(range(whole))

    def cut(*args, **options):
        if next(left, None) is not None:
            return call(*args, **options)
        half(*args)
        raise PowerFailure

    return cut
