"""One ONNX Runtime session for a graph with weights as inputs; torch is never needed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import DataError
from edgeveil.subnormals import flushed

if TYPE_CHECKING:
    from onnxruntime import InferenceSession as OrtSession
    from onnxruntime import RunOptions

PROBABILITIES, VALUE, SCORE = "probabilities", "value", "score"  # outputs of graphs
BATCH_RECORDS = 64
MAX_GRAPH_BYTES = 250 << 20  # so that its package stays below the usual limits.blob_bytes
MAX_RUN_BYTES = 512 << 20  # of all tensors of all sessions of this process
_LOOKS = 8  # clock checks per time limit
ALIGNMENT_BYTES = 64  # a cache line, and the widest vector register


def aligned(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return float32 `values` at a multiple of 64 bytes, as kernels may sum by the address."""
    if (
        values.dtype == np.float32
        and values.flags.c_contiguous
        and values.ctypes.data % ALIGNMENT_BYTES == 0
    ):
        return values
    size = 4 * math.prod(values.shape)
    memory = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT_BYTES
    copy = memory[start : start + size].view(np.float32).reshape(values.shape)
    copy[...] = values
    return copy


class OnnxModel:
    """A graph with data input `x`, weights as other inputs, and one output, on one thread.

    The output is `probabilities` (n, classes), `value` (n, 1) or `score` (n, 1)."""

    def __init__(self, graph: bytes, max_bytes: int = MAX_GRAPH_BYTES) -> None:
        if len(graph) > max_bytes:
            raise DataError(f"has {len(graph)} bytes, the limit is {max_bytes}", where="ONNX graph")
        self._session = open_session(graph)
        inputs = {item.name: item for item in self._session.get_inputs()}
        outputs = {item.name for item in self._session.get_outputs()}
        known = [name for name in (PROBABILITIES, VALUE, SCORE) if name in outputs]
        self.output = known[0] if known else VALUE
        if "x" not in inputs or self.output not in outputs:
            raise DataError(
                f"has inputs {sorted(inputs)} and outputs {sorted(outputs)}",
                where="ONNX graph",
                fix="name the data input 'x' and the output 'probabilities', of a number 'value',"
                " of anomalies 'score'",
            )
        self.input_shape: tuple[int | None, ...] = tuple(
            axis if isinstance(axis, int) else None for axis in inputs.pop("x").shape[1:]
        )
        self.weight_names = frozenset(inputs)

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self._session.get_modelmeta().custom_metadata_map)

    def fits(self, x: NDArray[Any]) -> bool:
        wanted = self.input_shape
        return len(x.shape) == len(wanted) + 1 and all(
            axis is None or axis == have for axis, have in zip(wanted, x.shape[1:], strict=True)
        )

    def probabilities(
        self,
        x: NDArray[np.float32],
        weights: Mapping[str, NDArray[Any]],
        *,
        limit: RunLimit | None = None,
    ) -> NDArray[np.float64]:
        """Return `answers` of a classifier. Raises DataError for other models."""
        if self.output != PROBABILITIES:
            what = f"returns a {self.output}, and classes are required"
            raise DataError(what, where="ONNX graph")
        return self.answers(x, weights, limit=limit)

    def answers(
        self,
        x: NDArray[np.float32],
        weights: Mapping[str, NDArray[Any]],
        *,
        limit: RunLimit | None = None,
    ) -> NDArray[np.float64]:
        """Return the output (n, classes) or (n, 1) for records x (n, ...). Raises DataError."""
        missing = self.weight_names - set(weights)
        if missing:
            raise DataError(f"needs the weights {sorted(missing)}", where="ONNX graph")
        feed = {name: aligned(np.asarray(weights[name])) for name in self.weight_names}
        if not self.fits(x):
            what = f"takes records of shape {self.input_shape}, got {tuple(x.shape[1:])}"
            raise DataError(what, where="ONNX graph", fix="check data.input_shape of the job")
        # ONNX Runtime cannot reshape zero records: run one, and drop the result.
        given = x if len(x) else np.zeros((1, *x.shape[1:]), x.dtype)
        parts = [
            self._run({**feed, "x": aligned(given[start : start + BATCH_RECORDS])}, limit)
            for start in range(0, len(given), BATCH_RECORDS)
        ]
        return np.concatenate(parts)[: len(x)].astype(np.float64)

    def _run(self, feed: dict[str, NDArray[Any]], limit: RunLimit | None) -> NDArray[Any]:
        found = run_session(self._session, self.output, feed, limit)
        wide = found.ndim == 2 and (self.output == PROBABILITIES or found.shape[1] == 1)
        if not wide or len(found) != len(feed["x"]):
            raise DataError(f"gave an output of shape {found.shape}", where="ONNX graph")
        return found


@cache
def _bound_memory() -> None:
    """Bound the memory of all sessions: some thirty operators could exhaust any box."""
    import onnxruntime as ort

    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    grows_as_asked, default = 1, -1
    ort.create_and_register_allocator(
        memory, ort.OrtArenaCfg(MAX_RUN_BYTES, grows_as_asked, default, default)
    )


def run_session(
    session: OrtSession,
    output: str,
    feed: Mapping[str, NDArray[Any]],
    limit: RunLimit | None = None,
) -> NDArray[Any]:
    """Return one output of a run, subnormals as zero. Raises DataError on failure or timeout."""
    import onnxruntime as ort

    options = ort.RunOptions()  # return the arena's memory after each run
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    try:
        with flushed(), limit.of(options) if limit else nullcontext():
            found = session.run([output], dict(feed), options)[0]
    except Exception as error:  # ONNX Runtime's own exceptions have no common root
        what = f"cannot be run: {type(error).__name__}: {error}"
        fix = "check data.input_shape of the job"
        raise DataError(what, where="ONNX graph", fix=fix) from error
    return np.array(found)  # copied out of the bounded arena, as it may be kept


class RunLimit:
    """Ends runs of this thread past `limit_s` of CPU time, between two operators."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._over = threading.Event()
        self._run: tuple[RunOptions, float] | None = None  # options and end time

    def __enter__(self) -> RunLimit:
        self._spent_s = _own_clock()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        if self.limit_s < math.inf:
            self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._watching.is_alive():
            self._watching.join()  # before the thread ends whose clock it reads

    @contextmanager
    def of(self, options: RunOptions) -> Iterator[None]:
        """Limit one run with these options. Raises TimeoutError if it took longer."""
        until_s = self._spent_s() + self.limit_s
        self._run = options, until_s
        try:
            yield
        finally:
            self._run = None
        if self._spent_s() > until_s:
            raise TimeoutError(f"a run took longer than {self.limit_s:g} s")

    def _watch(self) -> None:
        while not self._over.wait(self.limit_s / _LOOKS):
            run = self._run
            if run is not None and self._spent_s() >= run[1]:
                run[0].terminate = True


def _own_clock() -> Callable[[], float]:
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)


def open_session(graph: bytes) -> OrtSession:
    """Return a CPU session with one thread for `run_session`. Raises DataError, PrivacyError."""
    # A tensor stored outside the graph is marked by the key "location"; loading it would let
    # the graph's author choose a file of this machine to read.
    if b"location" in graph:
        what = "refers to a file outside itself"
        raise DataError(what, where="ONNX graph", fix="embed all tensors")
    try:
        import onnxruntime as ort
    except ImportError as error:
        what = "ONNX Runtime is not installed"
        raise DataError(what, where="ONNX graph", fix="pip install edgeveil[infer]") from error
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors come back as exceptions
    _bound_memory()
    options.add_session_config_entry("session.use_env_allocators", "1")
    # Affects only the thread of the process's first session, hence also `flushed`.
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    with flushed():
        try:
            # Constant folding would use memory outside the bounded arena.
            return ort.InferenceSession(
                graph,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=["ConstantFolding"],
            )
        except Exception as error:  # ONNX Runtime's own exceptions have no common root
            what = f"cannot be loaded: {type(error).__name__}"
            raise DataError(what, where="ONNX graph", fix="export or copy it again") from error
