"""Convolutional networks for pictures.

`cnn`: the small network of Zhang, Wu and Dong (PSO-DP). `cnn_tanh`: the one of Papernot et al. 2021
for MNIST; bounded activations keep updates small. `lenet`: LeNet-5 (LeCun et al. 1998) with ReLU,
max pooling, a full second convolution and a dense output. `alexnet`: channels as Krizhevsky
2014 (arXiv:1404.5997) for pictures of about 32×32, windows of 3×3, no dropout, no local response
normalisation. `resnet20`: He et al. 2016, section 4.2; `resnet18`: table 1, with a first window of
3×3. Both with group normalisation, since batch normalisation has no gradient per record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from edgeveil.parts.models.layers import (
    Chain,
    Conv,
    Dense,
    Flatten,
    GlobalAveragePool,
    GroupNorm,
    Layer,
    MaxPool,
    Picture,
    Relu,
    Residual,
    Shape,
    Tanh,
    Thin,
    Window,
)
from edgeveil.parts.models.mlp import NetworkParameters
from edgeveil.parts.models.network import ModelPart, Network, classifier

Layers = tuple[tuple[str, Layer], ...]


def build_cnn(parameters: NetworkParameters, input_shape: Shape, classes: int) -> Network:
    """Build with a padding of 1, so that border values count; the text gives none."""
    window = Window(kernel=3, stride=2, padding=1)
    layers: Layers = (
        ("picture", Picture()),
        ("conv1", Conv(32, window)),
        ("relu1", Relu()),
        ("conv2", Conv(64, window)),
        ("relu2", Relu()),
        ("flat", Flatten()),
    )
    return classifier(layers, parameters, input_shape, classes)


def build_cnn_tanh(parameters: NetworkParameters, input_shape: Shape, classes: int) -> Network:
    pool = MaxPool(Window(kernel=2))
    layers: Layers = (
        ("picture", Picture()),
        ("conv1", Conv(16, Window(kernel=8, stride=2, padding=3))),
        ("tanh1", Tanh()),
        ("pool1", pool),
        ("conv2", Conv(32, Window(kernel=4, stride=2))),
        ("tanh2", Tanh()),
        ("pool2", pool),
        ("flat", Flatten()),
        ("hidden", Dense(32)),
        ("tanh3", Tanh()),
    )
    return classifier(layers, parameters, input_shape, classes, gain=1.0)


def build_lenet(parameters: NetworkParameters, input_shape: Shape, classes: int) -> Network:
    """Build with a first convolution that keeps the size: 28×28 as the original's 32×32."""
    pool = MaxPool(Window(kernel=2, stride=2))
    layers: Layers = (
        ("picture", Picture()),
        ("conv1", Conv(6, Window(kernel=5, padding=2))),
        ("relu1", Relu()),
        ("pool1", pool),
        ("conv2", Conv(16, Window(kernel=5))),
        ("relu2", Relu()),
        ("pool2", pool),
        ("flat", Flatten()),
        ("hidden1", Dense(120)),
        ("relu3", Relu()),
        ("hidden2", Dense(84)),
        ("relu4", Relu()),
    )
    return classifier(layers, parameters, input_shape, classes)


CHANNELS = (64, 192, 384, 256, 256)
POOLED = (1, 2, 5)  # after these convolutions
DENSE = 1024  # units of the first two dense layers; the original has 4096


def build_alexnet(parameters: NetworkParameters, input_shape: Shape, classes: int) -> Network:
    """Build with stride 2 first, and pooling after the first, second and fifth convolution."""
    layers: list[tuple[str, Layer]] = [("picture", Picture())]
    for number, channels in enumerate(CHANNELS, start=1):
        window = Window(kernel=3, stride=2 if number == 1 else 1, padding=1)
        layers += [(f"conv{number}", Conv(channels, window)), (f"relu{number}", Relu())]
        if number in POOLED:
            layers.append((f"pool{number}", MaxPool(Window(kernel=2, stride=2))))
    layers.append(("flat", Flatten()))
    for number in (6, 7):
        layers += [(f"dense{number}", Dense(DENSE)), (f"relu{number}", Relu())]
    return classifier(layers, parameters, input_shape, classes)


GROUP_CHANNELS = 8  # normalised together, where channels can be multiplied
LARGE = 64  # pixels a side from which a picture is made smaller first, as of the published size


def multiplied(channels: int, multiplier: float) -> int:
    """Return about channels·multiplier, in whole groups, never under nine tenths of it."""
    wanted, group = channels * multiplier, GROUP_CHANNELS
    found = max(group, int(wanted + group / 2) // group * group)
    return found + group if found < 0.9 * wanted else found


def is_large(input_shape: Shape) -> bool:
    return min(input_shape[-2:], default=0) >= LARGE


def normalised(
    name: str, channels: int, window: Window, groups: int = 0, *, depthwise: bool = False
) -> Layers:
    """Return a convolution and its normalisation, whose shift replaces a bias."""
    conv = Conv(channels, window, bias=False, depthwise=depthwise)
    norm = GroupNorm(groups or channels // GROUP_CHANNELS)
    return (f"conv{name}", conv), (f"norm{name}", norm)


def _stages(
    widths: Sequence[int], blocks: int, short: Callable[[int, int], Layers], groups: int = 0
) -> Iterator[tuple[str, Layer]]:
    """Yield residual blocks of two convolutions; each stage halves the sides of the one before.

    `short` gives the shortcut, by channels and stride, of a block that changes the shape."""
    before = widths[0]
    for stage, channels in enumerate(widths, start=1):
        for block in range(1, blocks + 1):
            stride = 2 if block == 1 and stage > 1 else 1
            first = normalised("1", channels, Window(3, stride, padding=1), groups)
            second = normalised("2", channels, Window(3, padding=1), groups)
            shortcut = () if before == channels and stride == 1 else short(channels, stride)
            body, name = Chain((*first, ("relu", Relu()), *second)), f"block{stage}.{block}"
            yield name, Residual(body, Chain(shortcut))
            yield f"{name}.relu", Relu()
            before = channels
    yield "mean", GlobalAveragePool()


STAGES = (16, 32, 64)  # channels of `resnet20`
GROUPS = 16  # of its channels, normalised together


def build_resnet20(parameters: NetworkParameters, input_shape: Shape, classes: int) -> Network:
    first = normalised("0", STAGES[0], Window(3, padding=1), GROUPS)
    layers = [("picture", Picture()), *first, ("relu0", Relu())]
    layers += _stages(STAGES, 3, lambda *thin: (("thin", Thin(*thin)),), GROUPS)
    return classifier(layers, parameters, input_shape, classes)


def build_resnet18(parameters: NetworkParameters, input_shape: Shape, classes: int) -> Network:
    widths = [multiplied(64 << stage, parameters.channel_multiplier) for stage in range(4)]
    large = is_large(input_shape)
    first = normalised("0", widths[0], Window(3, 2 if large else 1, padding=1))
    layers = [("picture", Picture()), *first, ("relu0", Relu())]
    if large:
        layers.append(("pool0", MaxPool(Window(3, 2, padding=1))))
    layers += _stages(widths, 2, lambda channels, s: normalised("", channels, Window(1, s)))
    return classifier(layers, parameters, input_shape, classes)


PICTURES = "records of [channels, height, width] or [height, width]"
_part = partial(ModelPart, parameters=NetworkParameters, needs=PICTURES)
PARTS = (
    _part(
        name="cnn",
        summary="Two 3×3 convolutions of stride 2, 32 and 64 channels, ReLU after each, one dense"
        " layer.",
        build=build_cnn,
        source="Zhang, Wu and Dong (PSO-DP)",
        example="model: {name: cnn}",
    ),
    _part(
        name="cnn_tanh",
        summary="Convolutions of 16 and 32 channels, 8×8 and 4×4, tanh, and 32 dense units: small"
        " updates for noise.",
        build=build_cnn_tanh,
        source="Papernot et al. 2021, tempered sigmoid activations",
        example="model: {name: cnn_tanh, input_scale: 255}",
    ),
    _part(
        name="lenet",
        summary="LeNet-5: convolutions of 6 and 16 channels, 5×5, pooled; dense layers of 120 and"
        " 84.",
        build=build_lenet,
        source="LeCun et al. 1998 (LeNet-5)",
        example="model: {name: lenet, input_scale: 255}",
    ),
    _part(
        name="alexnet",
        summary="AlexNet for 32×32 pictures: five 3×3 convolutions, three dense layers, no"
        " dropout.",
        settled={"dense": DENSE},
        build=build_alexnet,
        source="Krizhevsky 2014, for pictures of 32×32",
        example="model: {name: alexnet}",
    ),
    _part(
        name="resnet20",
        summary="ResNet-20 for small pictures, with group normalisation in place of batch"
        " normalisation.",
        settled={"groups": GROUPS, "shortcut": "thin"},
        build=build_resnet20,
        source="He et al. 2016, section 4.2; Zhang, Wu and Dong (PSO-DP)",
        example="model: {name: resnet20}",
    ),
    _part(
        name="resnet18",
        summary="ResNet-18 with group normalisation; small pictures keep their size at first.",
        build=build_resnet18,
        source="He et al. 2016, table 1; Wu and He 2018",
        example="model: {name: resnet18, channel_multiplier: 0.25, input_scale: 255}",
    ),
)
