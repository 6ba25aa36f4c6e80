"""All targets by name. A target's module is imported when it is asked for."""

from importlib import import_module

from edgeveil.errors import UsageError
from edgeveil.registry import nearest

MODULES = {
    "wire": ("frame", "inner", "package", "tensors", "assembly", "topic"),
    "sealed": ("stream", "stanzas", "broadcast", "segment", "enrolment", "key_file", "ledger"),
    "trusted": ("delegations", "devices"),
    "files": ("idx", "csv", "npz", "users"),
    "datasets": ("cifar", "hf", "parquet", "picture", "recording"),
    "graphs": ("onnx_wire", "graph_check", "backbone"),
    "machines": ("device", "proxy", "cloud"),
    "batches": ("batch", "spool"),
    "served": ("http", "http-bytes", "mqtt", "amqtt"),
    "configs": ("yaml", "job_yaml", "job_wire", "site_yaml"),
}
NAMES = {name: module for module, names in MODULES.items() for name in names}


def target(name):
    """The target of this name. Raises UsageError for an unknown one."""
    if name not in NAMES:
        raise UsageError(f"unknown target '{name}'", fix=nearest(name, list(NAMES)))
    return import_module(f"tests.fuzz.{NAMES[name]}").TARGETS[name]
