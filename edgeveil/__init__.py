"""Private federated learning for edge boxes, over MQTT: the library.

    import edgeveil

    job = edgeveil.load_job("configs/jobs/quickstart.yaml")
    print(edgeveil.price(job))                     # its privacy cost for one device
    result = edgeveil.simulate(job)                # a whole fleet in this process
    result.table("rounds")                         # plain rows, for pandas or a loop

| name | purpose | extra |
| --- | --- | --- |
| `load_job`, `Job` | a job file, checked | – |
| `validate`, `ConfigProblem` | every problem of a configuration file, as objects | – |
| `price`, `JobPrice` | the cost of a job for one device: both guarantees, round by round | – |
| `run`, `run_async`, `simulate` | a job with a whole fleet on this machine | `tools` |
| `ask`, `Statistics` | statistics of a fleet's records, and their answers | `tools` |
| `Result`, `RunProgress` | the result of a run, and its progress meanwhile | – |
| `predict`, `Predictions` | a released model on records | `infer` |
| `FederatedClassifier`, `FederatedRegressor` | scikit-learn's estimators over a fleet | `tools` |
| `push_to_hub`, `create_model_folder` | a run's model with its card for the Hub | `hub` |
| `mlflow` | the model flavour: `save_model`, `log_model`, `load_model` | `track` |
| `Cloud` | a running cloud: submit, list, watch, resume, cancel, fetch | – |
| `Device`, `DeviceStatus` | a learning device inside an application of yours | `train-fm` |
| `errors` | the errors of all of these, each with fault, place and fix | – |

Each name is loaded at its first use, so `import edgeveil` is fast and needs no library; a name with
a missing extra raises `errors.MissingExtraError`. The library imports none of the deployables and
tools built on it: the table below gives their modules as text (docs/adr/0019).
"""

from __future__ import annotations

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

from edgeveil import errors
from edgeveil.errors import needs_extra

if TYPE_CHECKING:  # the table below, for type checkers and editors
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
    from edgeveil_tools.estimators import FederatedClassifier as FederatedClassifier
    from edgeveil_tools.estimators import FederatedRegressor as FederatedRegressor
    from edgeveil_tools.hub import create_model_folder as create_model_folder
    from edgeveil_tools.hub import push_to_hub as push_to_hub
    from edgeveil_tools.local.local_run import load_job as load_job
    from edgeveil_tools.local.run import run as run
    from edgeveil_tools.local.run import run_async as run_async
    from edgeveil_tools.local.run import simulate as simulate
    from edgeveil_tools.local.run_log import RunProgress as RunProgress
    from edgeveil_tools.result import Result as Result
    from edgeveil_tools.statistics.answers import Statistics as Statistics
    from edgeveil_tools.statistics.ask import ask as ask
    from edgeveil_tools.tracking import mlflow_model as mlflow  # noqa: F401

# name: (module, the extra that its libraries come with)
_PLACES = {
    "Cloud": ("edgeveil_tools.cloud_client", ""),
    "ConfigProblem": ("edgeveil.errors", ""),
    "Device": ("edgeveil_edge.embedded", "train-fm"),
    "DeviceStatus": ("edgeveil_edge.embedded", "train-fm"),
    "FederatedClassifier": ("edgeveil_tools.estimators", "tools"),
    "FederatedRegressor": ("edgeveil_tools.estimators", "tools"),
    "Job": ("edgeveil.jobs", ""),
    "JobPrice": ("edgeveil_tools.checks", ""),
    "Predictions": ("edgeveil_edge.predict", "infer"),
    "Result": ("edgeveil_tools.result", ""),
    "RunProgress": ("edgeveil_tools.local.run_log", ""),
    "Statistics": ("edgeveil_tools.statistics.answers", ""),
    "ask": ("edgeveil_tools.statistics.ask", "tools"),
    "create_model_folder": ("edgeveil_tools.hub", "hub"),
    "load_job": ("edgeveil_tools.local.local_run", ""),
    "mlflow": ("edgeveil_tools.tracking.mlflow_model", "track"),  # the module itself
    "predict": ("edgeveil_edge.predict", "infer"),
    "price": ("edgeveil_tools.checks", ""),
    "push_to_hub": ("edgeveil_tools.hub", "hub"),
    "run": ("edgeveil_tools.local.run", "tools"),
    "run_async": ("edgeveil_tools.local.run", "tools"),
    "simulate": ("edgeveil_tools.local.run", "tools"),
    "validate": ("edgeveil_tools.checks", ""),
}

__all__ = [*_PLACES, "errors"]


def __getattr__(name: str) -> Any:
    """Load a name of the table at its first use (PEP 562). Raises MissingExtraError."""
    if name not in _PLACES:
        raise AttributeError(f"module 'edgeveil' has no attribute '{name}'")
    module, extra = _PLACES[name]
    collects = gc.isenabled()
    gc.disable()  # imports make no garbage, and looking for it takes a quarter of their time
    try:
        with needs_extra(extra):
            loaded = import_module(module)
    finally:
        if collects:
            gc.enable()
    found = getattr(loaded, name, loaded)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
