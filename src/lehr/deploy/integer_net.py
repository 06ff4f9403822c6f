"""A trained network as integers; its reference run (reference.py) is what every backend must equal.

An `IntegerNet` is a list of operations (operations.py) in topological order over named values. The first is the
`Table` that pixels go through, or `Floats`; the last one is the output, unless several are named. Shapes, kinds and the
exact range of every value are worked out once, when the network is made.

>>> import numpy as np
>>> from lehr.deploy.operations import Affine, Flatten, Linear, Table, Weights
>>> net = IntegerNet((1, 1, 2), (
...     Table("pixels", np.arange(256)[None] // 128),
...     Flatten("flat", "pixels"),
...     Linear("sums", "flat", Weights.of([[1, -1], [0, 1]])),
...     Affine("logits", "sums", scale=[0.5, 1.0], shift=[0.0, -1.0]),
... ))
>>> net.run(np.array([[[[200, 7]]]], dtype=np.uint8))
array([[ 0.5, -1. ]], dtype=float32)
>>> net.values["sums"]
Value(shape=(2, 1, 1), kind='integer', low=-1, high=1)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lehr.deploy.card import Card
from lehr.deploy.inputs import INPUTS, Images, InputType, check_batch, input_value
from lehr.deploy.net_summary import Summary
from lehr.deploy.operations import Affine, Conv, Floats, Operation, Round, Table, Value, short
from lehr.deploy.reference import result

_FLOAT32_COUNTS = 2**24  # up to here every integer is a float32
_MOST_NUMBERS = 2**29  # in a value: C counts their bytes in int32
_LONGEST_NAME = 1000  # characters; C compilers need not take strings of more than 4095 bytes
_AT_ONCE = 2**24  # numbers that the reference run holds of the images it takes at once


@dataclass(frozen=True)
class Output:
    """A result of a network: the `value` it is, under a name of its own, in the shape torch gives for one image."""

    name: str
    value: str
    shape: tuple[int, ...]


def flat_output(name: str, value: Value) -> Output:
    """The one output of a network that names none: the value `name`, flat."""
    return Output("logits", name, (value.size,))


@dataclass(frozen=True, eq=False, repr=False)
class IntegerNet:
    """A network of integers: `run` gives logits, `scores` the integers they come from, `predict` classes.

    `outputs` are its results, the last operation alone if none are named. `values` tells shape, kind and range of every
    value by name. `rounded` are the places where the network it was frozen from rounds its sums, a sentence each.
    """

    input_shape: tuple[int, ...]  # (features,), (channel, time) or (channel, row, column)
    operations: tuple[Operation, ...]
    classes: tuple[str, ...] = ()  # names of the classes, if they have names
    rounded: tuple[str, ...] = ()
    input_dtype: InputType = "uint8"
    outputs: tuple[Output, ...] = ()  # the last operation, flat, unless others are given
    card: Card = field(default_factory=Card)  # what it was trained on, how, and what it is not for
    values: Mapping[str, Value] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shape = tuple(int(x) for x in self.input_shape)
        if not 1 <= len(shape) <= 3 or min(shape) < 1:
            raise ValueError(
                f"input_shape is (channel, row, column) or shorter, each at least 1, got {self.input_shape}"
            )
        if self.input_dtype not in INPUTS:
            raise ValueError(f"input_dtype is one of {', '.join(INPUTS)}, got {self.input_dtype!r}")
        if not isinstance(self.card, Card):
            raise TypeError(f"card is a Card(name, data=, recipe=, ...), got {self.card!r:.60}")
        operations = tuple(self.operations)
        first = Floats if self.input_dtype == "float32" else Table
        if not operations or not isinstance(operations[0], first):
            raise ValueError(
                f"the first operation is the {first.__name__} that the {self.input_dtype} input goes through"
            )
        values: dict[str, Value] = {}
        used: set[str] = set()
        image = input_value(shape, self.input_dtype)
        for index, operation in enumerate(operations):
            if not operation.sources and index:
                raise ValueError(f"{operation.name}: only the first operation is a {type(operation).__name__}")
            if operation.name in values or not operation.name:
                raise ValueError(f"operation {index}: a value needs a name of its own, got {operation.name!r}")
            if len(operation.name) > _LONGEST_NAME:
                raise ValueError(
                    f"operation {index}: a name has at most {_LONGEST_NAME} characters, got {len(operation.name)}: "
                    f"{operation.name[:60]!r}..."
                )
            for source in operation.sources:
                if source not in values:
                    raise ValueError(f"{operation.name}: it reads {source!r}, which no earlier operation makes")
            inputs = [values[source] for source in operation.sources] if index else [image]
            value = values[operation.name] = operation.infer(*inputs)
            if value.size > _MOST_NUMBERS:
                raise ValueError(f"{operation.name}: it makes {value.size} numbers, more than {_MOST_NUMBERS}")
            used.update(operation.sources)
        last = operations[-1].name
        outputs = tuple(self.outputs) or (flat_output(last, values[last]),)
        _check_outputs(outputs, values)
        unused = [name for name in values if name not in used and name not in {output.value for output in outputs}]
        if unused:
            raise ValueError(f"nothing reads {', '.join(unused)}, and no output is made of it")
        classes = outputs[0].shape[0] if outputs[0].shape else 1
        if self.classes and len(self.classes) != classes:
            raise ValueError(f"{len(self.classes)} class names for {classes} outputs")
        for name in self.classes:
            if len(name) > _LONGEST_NAME:
                raise ValueError(
                    f"a class name has at most {_LONGEST_NAME} characters, got {len(name)}: {name[:60]!r}..."
                )
        object.__setattr__(self, "input_shape", shape)
        object.__setattr__(self, "operations", operations)
        object.__setattr__(self, "classes", tuple(self.classes))
        object.__setattr__(self, "rounded", tuple(self.rounded))
        object.__setattr__(self, "outputs", outputs)
        object.__setattr__(self, "values", MappingProxyType(values))

    def __repr__(self) -> str:
        taken, summary = "x".join(map(str, self.input_shape)), self.summary()
        what = "images" if self.input_dtype == "uint8" else self.input_dtype
        given = ", ".join(f"{'x'.join(map(str, output.shape)) or 1} {output.name}" for output in self.outputs)
        size = f"{len(self.operations)} operations, {summary.macs:,} MACs, {summary.bytes:,} bytes"
        if summary.floats:
            size += f", {len(summary.floats)} operations with {100 * summary.float_share:.1f} % of the MACs in float"
        return f"IntegerNet({taken} {what} to {given}, {size}, {'' if self.exact else 'not '}exact)"

    def _repr_html_(self) -> str:
        return self.summary().table().html()

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it can be copied and sent to other processes."""
        fields = (
            self.input_shape,
            self.operations,
            self.classes,
            self.rounded,
            self.input_dtype,
            self.outputs,
            self.card,
        )
        return IntegerNet, fields

    @property
    def exact(self) -> bool:
        """Whether every integer is the one that the trained network computes, on any machine, proven by `freeze`."""
        return not self.inexact

    @property
    def inexact(self) -> tuple[str, ...]:
        """Where rounding can decide, a sentence for each place: a value in float, a sum beyond 2^24, `rounded`."""
        ends = {output.value for output in self.outputs}
        inner = [
            (operation.name, self.values[operation.name])
            for operation in self.operations
            if operation.name not in ends and not isinstance(operation, Floats)
        ]
        floats = [name for name, value in inner if value.kind == "float"]
        large = [(name, max(-value.low, value.high)) for name, value in inner if value.kind == "integer"]
        return (
            *([f"{short(floats)}: computed in float32"] if floats else []),
            *(
                f"{name}: reaches {size:,}, and float32 counts to 2^24"
                for name, size in large
                if size > _FLOAT32_COUNTS
            ),
            *self.rounded,
        )

    @property
    def input(self) -> Value:
        """Shape, kind and range of what goes in."""
        return input_value(self.input_shape, self.input_dtype)

    @property
    def output(self) -> Value:
        """The value of the first output."""
        return self.values[self.outputs[0].value]

    def score_of(self, output: Output) -> str:
        """The value whose integers an output is computed from: what its `Affine` reads, or else the output itself."""
        last = next(operation for operation in self.operations if operation.name == output.value)
        if isinstance(last, Affine) and self.values[last.source].kind == "integer":
            return last.source
        return last.name

    def run(self, images: Images) -> Any:
        """The outputs for a batch, in the shapes torch gives: float32, or integers if the network ends with integers.

        Args:
            images: A batch of what the network takes, (batch, *input_shape) of `input_dtype`; numpy or torch.

        Returns:
            The output, (batch, class) for a classifier; of a network with several, a dictionary by their names.
        """
        return self._run(images, {output.name: output.value for output in self.outputs})

    def scores(self, images: Images) -> Any:
        """The integer scores, int64, in the shapes of `run`; equal bit for bit in every backend."""
        return self._run(images, {output.name: self.score_of(output) for output in self.outputs})

    def predict(self, images: Any, *, resize: bool = False) -> Any:
        """The class of each image, or of each place of it: the first of the largest of the first output.

        Args:
            images: A batch of what the network takes, or the path of an image file, or a PIL image.
            resize: Crop an image of another size to its middle and scale it; without it, it is refused.

        Returns:
            The numbers of the classes; of an image file or a PIL image, the name of its class.
        """
        if isinstance(images, np.ndarray):  # twice the same, for type checkers: `run` takes one of both, not either
            return self.classes_of(self.run(images))
        if isinstance(images, Tensor):
            return self.classes_of(self.run(images))
        from lehr.deploy.images import image_batch

        number = int(self.classes_of(self.run(image_batch(images, self, resize=resize)))[0])
        return self.classes[number] if self.classes else number

    def classes_of(self, found: Any) -> Any:
        """The classes in what `run` has given."""
        logits = found[self.outputs[0].name] if isinstance(found, dict) else found
        if logits.ndim < 2:
            raise ValueError("the network gives one number, and no scores of classes: use run")
        return logits.argmax(1)

    def trace(self, images: Tensor) -> dict[str, Tensor]:
        """Every value by name for a batch of `input_dtype`, to look at or to compare with."""
        check_batch(images, self.input_shape, self.input_dtype)
        values: dict[str, Tensor] = {}
        for operation in self.operations:
            inputs = [values[source] for source in operation.sources] or [self._placed(images)]
            values[operation.name] = result(operation, *inputs)
        return values

    def save(self, path: str | Path) -> None:
        """Write a packed `.lehr` file."""
        from lehr.deploy.pack import save

        save(self, path)

    def summary(self) -> Summary:
        """Bits, multiply-accumulates and bytes of each operation."""
        outputs = {output.value for output in self.outputs}
        return Summary.of(self.operations, self.values, outputs)

    def _run(self, images: Any, names: Mapping[str, str]) -> Any:
        check_batch(images, self.input_shape, self.input_dtype)
        shapes = {output.name: output.shape for output in self.outputs}
        batch = torch.from_numpy(np.ascontiguousarray(images)) if isinstance(images, np.ndarray) else images.cpu()
        parts = [self._values(part, set(names.values())) for part in batch.split(self._at_once())] if len(batch) else []
        found: dict[str, Any] = {}
        for output, name in names.items():
            value = self.values[name]
            empty = torch.empty(0, dtype=torch.float32 if value.kind == "float" else torch.int64)
            joined = torch.cat([part[name].flatten() for part in parts] or [empty])
            joined = joined.reshape(len(batch), *shapes[output])
            found[output] = joined.numpy() if isinstance(images, np.ndarray) else joined
        return found if len(found) > 1 else found[self.outputs[0].name]

    def _at_once(self) -> int:
        """How many images a part of a batch has: few enough for the memory, whose numbers have 8 bytes."""
        gathered = [
            operation.gathered(self.values[operation.source], self.values[operation.name])
            for operation in self.operations
            if isinstance(operation, Conv)
        ]
        numbers = sum(value.size for value in self.values.values()) + max(gathered, default=0)
        return max(1, min(64, _AT_ONCE // numbers))

    def _values(self, images: Tensor, names: set[str]) -> dict[str, Tensor]:
        """Some values for a batch; the others are kept only while something reads them."""
        last_use = {source: operation.name for operation in self.operations for source in operation.sources}
        values: dict[str, Tensor] = {}
        for operation in self.operations:
            inputs = [values[source] for source in operation.sources] or [self._placed(images)]
            values[operation.name] = result(operation, *inputs)
            if names <= set(values):
                break
            for source in set(operation.sources):
                if last_use[source] == operation.name and source not in names:
                    del values[source]
        return values

    def _placed(self, images: Tensor) -> Tensor:
        """With rows and columns."""
        return images.reshape(len(images), *self.input.shape)


def random_batch(net: IntegerNet, count: int) -> np.ndarray:
    """Some input for a network: all values of 8 bits, or floats around those that it rounds to different integers."""
    random, shape = np.random.default_rng(0), (count, *net.input_shape)
    if net.input_dtype != "float32":
        return random.integers(net.input.low, net.input.high + 1, shape, dtype=net.input_dtype)
    batch = random.standard_normal((count, *net.input.shape), dtype=np.float32)
    rounds = next((operation for operation in net.operations if isinstance(operation, Round)), None)
    if rounds is not None:
        mean, factor = (x[:, None, None] for x in (rounds.mean, rounds.factor))
        batch = (mean + batch * (rounds.limit / 2) / factor).astype(np.float32)
    return batch.reshape(shape)


def _check_outputs(outputs: Sequence[Output], values: Mapping[str, Value]) -> None:
    names = [output.name for output in outputs]
    if len(set(names)) < len(names) or not all(names):
        raise ValueError(f"outputs need names of their own, got {short(names)}")
    for output in outputs:
        if len(output.name) > _LONGEST_NAME:
            raise ValueError(f"an output's name has at most {_LONGEST_NAME} characters, got {len(output.name)}")
        if output.value not in values:
            raise ValueError(f"output {output.name!r} is made of {output.value!r}, which no operation makes")
        if math.prod(output.shape) != values[output.value].size or len(output.shape) > 3:
            raise ValueError(
                f"output {output.name!r} has shape {output.shape}, and {output.value} has {values[output.value].shape}"
            )
