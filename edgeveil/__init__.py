"""Private federated learning for edge boxes, over MQTT: the library.

    import edgeveil

    job = edgeveil.load_job("configs/jobs/quickstart.yaml")
    print(edgeveil.price(job))                     # what it costs a device, before anything runs
    result = edgeveil.simulate(job)                # a whole fleet in this process
    result.table("rounds")                         # plain rows, for pandas or a loop

| name | what it is for | extra |
| --- | --- | --- |
| `load_job`, `Job` | a job file, checked | – |
| `validate`, `ConfigProblem` | every problem of a configuration file, as objects | – |
| `price`, `JobPrice` | what a job costs one device: both guarantees, round by round | – |
| `run`, `run_async`, `simulate` | a job with a whole fleet on this machine | `tools` |
| `Result`, `RunProgress` | what a run came to, and how it stands meanwhile | – |
| `predict`, `Predictions` | a released model on records | `infer` |
| `Cloud` | a running cloud: submit, list, watch, resume, cancel, fetch | – |
| `Device`, `DeviceStatus` | a learning device inside an application of yours | `train-fm` |
| `errors` | what all of these raise, each with what, where and the fix | – |

Each name is loaded when it is first asked for, so that `import edgeveil` takes no time and needs no
library: a name whose extra is missing raises `errors.MissingExtraError`, which names the extra. The
library itself imports none of what is built on it, the deployables and the tools: the table below
gives their modules by name, and only who asks for one loads it (docs/adr/0019).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from edgeveil import errors
from edgeveil.errors import needs_extra

if TYPE_CHECKING:  # the same table once more, for type checkers and editors
    from edgeveil.errors import ConfigProblem as ConfigProblem
    from edgeveil.jobs import Job as Job
    from edgeveil_edge.embedded import Device as Device
    from edgeveil_edge.embedded import DeviceStatus as DeviceStatus
    from edgeveil_edge.predict import Predictions as Predictions
    from edgeveil_edge.predict import predict as predict
    from edgeveil_tools.checks import JobPrice as JobPrice
    from edgeveil_tools.checks import price as price
    from edgeveil_tools.checks import validate as validate
    from edgeveil_tools.cloud_client import Cloud as Cloud
    from edgeveil_tools.local.local_run import load_job as load_job
    from edgeveil_tools.local.run import run as run
    from edgeveil_tools.local.run import run_async as run_async
    from edgeveil_tools.local.run import simulate as simulate
    from edgeveil_tools.local.run_log import RunProgress as RunProgress
    from edgeveil_tools.result import Result as Result

# name: (module, the extra that its libraries come with)
_PLACES = {
    "Cloud": ("edgeveil_tools.cloud_client", ""),
    "ConfigProblem": ("edgeveil.errors", ""),
    "Device": ("edgeveil_edge.embedded", "train-fm"),
    "DeviceStatus": ("edgeveil_edge.embedded", "train-fm"),
    "Job": ("edgeveil.jobs", ""),
    "JobPrice": ("edgeveil_tools.checks", ""),
    "Predictions": ("edgeveil_edge.predict", "infer"),
    "Result": ("edgeveil_tools.result", ""),
    "RunProgress": ("edgeveil_tools.local.run_log", ""),
    "load_job": ("edgeveil_tools.local.local_run", ""),
    "predict": ("edgeveil_edge.predict", "infer"),
    "price": ("edgeveil_tools.checks", ""),
    "run": ("edgeveil_tools.local.run", "tools"),
    "run_async": ("edgeveil_tools.local.run", "tools"),
    "simulate": ("edgeveil_tools.local.run", "tools"),
    "validate": ("edgeveil_tools.checks", ""),
}

__all__ = [*_PLACES, "errors"]


def __getattr__(name: str) -> Any:
    """A name of the table, loaded at its first use (PEP 562). Raises MissingExtraError."""
    if name not in _PLACES:
        raise AttributeError(f"module 'edgeveil' has no attribute '{name}'")
    module, extra = _PLACES[name]
    with needs_extra(extra):
        found = getattr(import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
