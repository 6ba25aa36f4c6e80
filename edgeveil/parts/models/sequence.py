"""Networks over time: records of tokens [length], or of numbers [length] or [length, columns].

`gru`: gated recurrent units (Cho et al. 2014, as torch.nn.GRU). `tcn`: residual blocks of dilated
convolutions (Bai et al. 2018), not causal, with group normalisation. `transformer`: encoder layers
that normalise first (Vaswani et al. 2017; Xiong et al. 2020), with learned positions. The mean over
all time steps is classified. Of tokens, 0 is padding: the mean leaves it out, convolutions see it
as 0, and no attention goes to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from pydantic import Field

from edgeveil.errors import DataError
from edgeveil.parts.models.layers import (
    NORM_EPSILON,
    Chain,
    Conv,
    Dense,
    GroupNorm,
    Layer,
    Relu,
    Residual,
    Shape,
    Weight,
    Window,
    row_nodes,
)
from edgeveil.parts.models.network import ModelParameters, ModelPart, Network, classifier
from edgeveil.parts.part import only_for, some_names

if TYPE_CHECKING:
    from torch import Tensor

    from edgeveil.parts.features.feature_map import NodeList
    from edgeveil.parts.models.layers import Tensors

LONGEST = 1024  # time steps
MOST_STEPS = 256  # of all layers of `gru`, as its steps are written out in the model's graph
_FLOAT = 1  # TensorProto.DataType


class SequenceParameters(ModelParameters):
    """The `model` block of the networks over time."""

    name: Literal["gru", "tcn", "transformer"]
    """Which network; `edgeveil methods` describes each."""
    tokens: int = Field(default=0, ge=0, le=1 << 20, examples=[4096])
    """Size of the vocabulary, of records of whole numbers below it; 0 is padding, and larger
    numbers count as the last. 0: records of numbers."""
    width: int = Field(default=32, ge=8, le=1024, multiple_of=8)
    """Values of each time step after every layer, that of the tokens' table included."""
    depth: Annotated[int, Field(ge=1, le=16), only_for(gru=1, tcn=3, transformer=2)] = some_names()
    """Layers over time; of `gru` 1, of `tcn` 3, of `transformer` 2 by default."""


class _TimeBlock(Protocol):
    """A layer over time (n, length, width); `mask` (n, length, 1) is 0 at padding, or None."""

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]: ...

    def apply(self, weights: Tensors, name: str, x: Tensor, mask: Tensor | None) -> Tensor: ...

    def nodes(self, graph: NodeList, name: str, x: str, mask: str | None, given: Shape) -> str: ...


def _linear(weights: Tensors, name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _single(graph: NodeList, x: str, place: int, axis: int) -> str:
    """Add x at one place of an axis, without that axis."""
    import numpy as np
    from onnx import numpy_helper

    index = graph.fresh("constant")
    graph.initializers.append(numpy_helper.from_array(np.array(place), index))
    return graph.add("Gather", x, index, axis=axis)


def _linear_nodes(graph: NodeList, name: str, x: str) -> str:
    return graph.add("Add", graph.add("MatMul", x, f"{name}.weight"), f"{name}.bias")


@dataclass(frozen=True)
class LayerNorm(Layer):
    """Layer normalisation over the last axis (Ba, Kiros and Hinton 2016)."""

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        one = given[-1:]
        return Weight(f"{name}.weight", one, start=1.0), Weight(f"{name}.bias", one)

    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        from torch.nn.functional import layer_norm

        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return layer_norm(x, x.shape[-1:], scale, shift, NORM_EPSILON)

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        own = (f"{name}.weight", f"{name}.bias")
        return graph.add("LayerNormalization", x, *own, axis=-1, epsilon=NORM_EPSILON)


NORM = LayerNorm()


@dataclass(frozen=True)
class OverTime(Layer):
    """Mean over the time steps of embedded records after some blocks."""

    tokens: int
    width: int
    blocks: tuple[tuple[str, _TimeBlock], ...]
    positions: bool = False

    def output_shape(self, given: Shape) -> Shape:
        if len(given) not in ((1,) if self.tokens else (1, 2)) or given[0] > LONGEST:
            what = "tokens" if self.tokens else "numbers over time"
            wanted = "[length]" if self.tokens else "[length] or [length, columns]"
            fix = f"set data.input_shape to {wanted}, with a length of at most {LONGEST}"
            raise DataError(f"records of shape {list(given)} are no {what}", fix=fix)
        return (self.width,)

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        self.output_shape(given)
        inner = (given[0], self.width)
        if self.tokens:
            found = [Weight(f"{name}.embedding.weight", (self.tokens, self.width), self.width)]
        else:
            found = [*Dense(self.width).weights(f"{name}.input", given[1:])]
        if self.positions:
            found.append(Weight(f"{name}.positions", inner, self.width))
        for part, block in self.blocks:
            found += block.weights(f"{name}.{part}", inner)
        return tuple(found)

    def apply(self, weights: Tensors, name: str, x: Tensor) -> Tensor:
        mask = None
        if self.tokens:
            from torch.nn.functional import embedding

            from edgeveil.nn import table_rows

            mask = (x > 0.5).to(x.dtype)[..., None]
            x = embedding(table_rows(x, self.tokens), weights[f"{name}.embedding.weight"])
        else:
            x = _linear(weights, f"{name}.input", x if x.ndim == 3 else x[..., None])
        if self.positions:
            x = x + weights[f"{name}.positions"]
        for part, block in self.blocks:
            x = block.apply(weights, f"{name}.{part}", x, mask)
        return x.mean(1) if mask is None else (x * mask).sum(1) / mask.sum(1).clamp(min=1)

    def nodes(self, graph: NodeList, name: str, x: str, given: Shape) -> str:
        mask, inner = None, (given[0], self.width)
        if self.tokens:
            real = graph.add("Cast", graph.add("Greater", x, graph.number(0.5)), to=_FLOAT)
            mask = graph.add("Unsqueeze", real, graph.whole(2))
            rows = row_nodes(graph, graph.add("Add", x, graph.number(0.5)), 0, self.tokens - 1)
            x = graph.add("Gather", f"{name}.embedding.weight", rows, axis=0)
        else:
            columns = given[1] if len(given) == 2 else 1
            x = graph.add("Reshape", x, graph.whole(-1, given[0], columns))
            x = _linear_nodes(graph, f"{name}.input", x)
        if self.positions:
            x = graph.add("Add", x, f"{name}.positions")
        for part, block in self.blocks:
            x = block.nodes(graph, f"{name}.{part}", x, mask, inner)
        if mask is None:
            return graph.add("ReduceMean", x, axes=[1], keepdims=0)
        time = graph.whole(1)
        total = graph.add("ReduceSum", graph.add("Mul", x, mask), time, keepdims=0)
        count = graph.add("ReduceSum", mask, time, keepdims=0)
        return graph.add("Div", total, graph.add("Max", count, graph.number(1.0)))


@dataclass(frozen=True)
class _Gru:
    """torch.nn.GRU of one layer, with its names of weights.

    Its nodes are written out step by step: the time of ONNX Runtime's GRU follows from values."""

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        width = given[1]
        fan_in = 6 * width  # a variance of 1/(3·width), as torch.nn starts with
        return (
            Weight(f"{name}.weight_ih_l0", (3 * width, width), fan_in),
            Weight(f"{name}.weight_hh_l0", (3 * width, width), fan_in),
            Weight(f"{name}.bias_ih_l0", (3 * width,)),
            Weight(f"{name}.bias_hh_l0", (3 * width,)),
        )

    def apply(self, weights: Tensors, name: str, x: Tensor, mask: Tensor | None) -> Tensor:
        from edgeveil.nn import unrolled

        own, biases = (
            [weights[f"{name}.{kind}_{part}_l0"] for part in ("ih", "hh")]
            for kind in ("weight", "bias")
        )
        return unrolled("GRU", x, [x.new_zeros(1, x.shape[2])], own, biases)[0]

    def nodes(self, graph: NodeList, name: str, x: str, mask: str | None, given: Shape) -> str:
        import numpy as np

        length, width = given

        def part(of: str, start: int, end: int, axis: int) -> str:
            ends = graph.whole(start * width), graph.whole(end * width)
            return graph.add("Slice", of, *ends, graph.whole(axis))

        def split(kind: str) -> tuple[str, str]:
            return part(f"{name}.{kind}", 0, 2, 0), part(f"{name}.{kind}", 2, 3, 0)

        turned = graph.add("Transpose", f"{name}.weight_ih_l0", perm=[1, 0])
        all_given = graph.add("Add", graph.add("MatMul", x, turned), f"{name}.bias_ih_l0")
        gates_given, new_given = part(all_given, 0, 2, 2), part(all_given, 2, 3, 2)
        gates_weight, new_weight = split("weight_hh_l0")
        gates_bias, new_bias = split("bias_hh_l0")
        first, second, third, axis = (graph.whole(n) for n in (0, width, 2 * width, 1))
        state = graph.constant(np.zeros((1, width), np.float32))
        outputs = []
        for step in range(length):
            gates = graph.add("Gemm", state, gates_weight, gates_bias, transB=1)
            gates = graph.add("Add", _single(graph, gates_given, step, 1), gates)
            gates = graph.add("Sigmoid", gates)
            reset = graph.add("Slice", gates, first, second, axis)
            update = graph.add("Slice", gates, second, third, axis)
            new = graph.add("Gemm", state, new_weight, new_bias, transB=1)
            new = graph.add("Add", _single(graph, new_given, step, 1), graph.add("Mul", reset, new))
            new = graph.add("Tanh", new)
            kept = graph.add("Mul", update, graph.add("Sub", state, new))
            state = graph.add("Add", new, kept)
            outputs.append(graph.add("Unsqueeze", state, axis))
        return graph.add("Concat", *outputs, axis=1)


@dataclass(frozen=True)
class _TemporalConv:
    """Two convolutions of 3 steps, `dilation` apart, and a shortcut (Bai et al. 2018, fig. 1)."""

    dilation: int

    def _inner(self, width: int) -> Chain:
        conv = Conv(width, Window((1, 3), 1, (0, self.dilation), (1, self.dilation)), bias=False)
        norm = GroupNorm(width // 8)
        first = ("conv1", conv), ("norm1", norm), ("relu", Relu())
        body = Chain((*first, ("conv2", conv), ("norm2", norm)))
        return Chain((("body", Residual(body)), ("out", Relu())))

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        return self._inner(given[1]).weights(name, (given[1], 1, given[0]))

    def apply(self, weights: Tensors, name: str, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x if mask is None else x * mask
        rows = x.transpose(1, 2).unsqueeze(2)
        return self._inner(x.shape[2]).apply(weights, name, rows).squeeze(2).transpose(1, 2)

    def nodes(self, graph: NodeList, name: str, x: str, mask: str | None, given: Shape) -> str:
        x = x if mask is None else graph.add("Mul", x, mask)
        row = graph.whole(2)
        x = graph.add("Unsqueeze", graph.add("Transpose", x, perm=[0, 2, 1]), row)
        x = self._inner(given[1]).nodes(graph, name, x, (given[1], 1, given[0]))
        return graph.add("Transpose", graph.add("Squeeze", x, row), perm=[0, 2, 1])


HEADS = 4
HIDDEN = 2  # units of the dense layers after attention, for each value of a step
_FAR = 1e4  # taken off the score of padding, whose share is then 0 in float32


@dataclass(frozen=True)
class Attention:
    """x + attention(norm(x)), then the same of two dense layers with ReLU."""

    def weights(self, name: str, given: Shape) -> tuple[Weight, ...]:
        width = given[1]
        linear = [("qkv", width, 3 * width), ("out", width, width)]
        linear += [("hidden", width, HIDDEN * width), ("back", HIDDEN * width, width)]
        found: list[Weight] = []
        for norm in ("norm1", "norm2"):
            found += NORM.weights(f"{name}.{norm}", given)
        for part, inside, outside in linear:
            shape = (inside, outside)
            found.append(Weight(f"{name}.{part}.weight", shape, 2 * inside, turned=True))
            found.append(Weight(f"{name}.{part}.bias", (outside,)))
        return tuple(found)

    def apply(self, weights: Tensors, name: str, x: Tensor, mask: Tensor | None) -> Tensor:
        count, length, width = x.shape
        parts = _linear(weights, f"{name}.qkv", NORM.apply(weights, f"{name}.norm1", x))
        query, key, value = parts.view(count, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(2, 3) * (width / HEADS) ** -0.5
        if mask is not None:
            scores = scores + (_FAR * mask - _FAR).transpose(1, 2)[:, None]
        found = (scores.softmax(3) @ value).transpose(1, 2).reshape(count, length, width)
        x = x + _linear(weights, f"{name}.out", found)
        even = NORM.apply(weights, f"{name}.norm2", x)
        hidden = _linear(weights, f"{name}.hidden", even).relu()
        return x + _linear(weights, f"{name}.back", hidden)

    def nodes(self, graph: NodeList, name: str, x: str, mask: str | None, given: Shape) -> str:
        length, width = given

        even = NORM.nodes(graph, f"{name}.norm1", x, given)
        parts = _linear_nodes(graph, f"{name}.qkv", even)
        parts = graph.add("Reshape", parts, graph.whole(-1, length, 3, HEADS, width // HEADS))
        query, key, value = (_single(graph, parts, number, 2) for number in range(3))
        query, value = (graph.add("Transpose", one, perm=[0, 2, 1, 3]) for one in (query, value))
        scores = graph.add("MatMul", query, graph.add("Transpose", key, perm=[0, 2, 3, 1]))
        scores = graph.add("Mul", scores, graph.number((width / HEADS) ** -0.5))
        if mask is not None:
            far = graph.add("Sub", graph.add("Mul", mask, graph.number(_FAR)), graph.number(_FAR))
            far = graph.add("Transpose", far, perm=[0, 2, 1])
            far = graph.add("Unsqueeze", far, graph.whole(1))
            scores = graph.add("Add", scores, far)
        found = graph.add("MatMul", graph.add("Softmax", scores, axis=3), value)
        found = graph.add("Transpose", found, perm=[0, 2, 1, 3])
        found = graph.add("Reshape", found, graph.whole(-1, length, width))
        x = graph.add("Add", x, _linear_nodes(graph, f"{name}.out", found))
        even = NORM.nodes(graph, f"{name}.norm2", x, given)
        hidden = graph.add("Relu", _linear_nodes(graph, f"{name}.hidden", even))
        return graph.add("Add", x, _linear_nodes(graph, f"{name}.back", hidden))


def build(parameters: SequenceParameters, input_shape: Shape, classes: int) -> Network:
    p = parameters
    if p.tokens and p.input_scale != 1:
        what = f"divides numbers of tokens by {p.input_scale:g}"
        raise DataError(what, where="model.input_scale", fix="leave it out")
    if p.name == "gru" and p.depth * input_shape[0] > MOST_STEPS:
        what = f"{p.depth} layers over {input_shape[0]} steps are more than {MOST_STEPS} in all"
        fix = "use shorter records or fewer layers, or tcn or transformer"
        raise DataError(what, where="model.depth", fix=fix)
    made: dict[str, Callable[[int], _TimeBlock]] = {
        "gru": lambda _: _Gru(),
        "tcn": lambda number: _TemporalConv(2**number),
        "transformer": lambda _: Attention(),
    }
    blocks = tuple((f"layer{n + 1}", made[p.name](n)) for n in range(p.depth))
    over = OverTime(p.tokens, p.width, blocks, positions=p.name == "transformer")
    last = (("norm", NORM),) if p.name == "transformer" else ()
    return classifier((("sequence", over), *last), p, input_shape, classes)


_part = partial(
    ModelPart,
    parameters=SequenceParameters,
    build=build,
    needs="records of [length] or [length, columns]; with tokens, of [length]",
)
PARTS = (
    _part(
        name="gru",
        summary="Gated recurrent units over tokens or windows, and their mean over time.",
        source="Cho et al. 2014",
        example="model: {name: gru, tokens: 4096}",
    ),
    _part(
        name="tcn",
        summary="Residual blocks of dilated convolutions over windows or tokens.",
        source="Bai, Kolter and Koltun 2018",
        example="model: {name: tcn, depth: 3}",
    ),
    _part(
        name="transformer",
        summary="Two small encoder layers, four heads each, over tokens or windows.",
        source="Vaswani et al. 2017; Xiong et al. 2020",
        example="model: {name: transformer, tokens: 4096}",
    ),
)
