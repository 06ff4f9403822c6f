"""Parse formulas typed by a user: arithmetic and named functions of x0..x9.

Python's parser reads the text, which is never executed. The syntax tree becomes a program for a stack machine; anything
outside this list raises a ValueError that names it::

    numbers, pi, e, the variables x0..x9
    + - * / and ** with a number for exponent
    abs atan cos exp log max min relu sigmoid sin sqrt tanh

>>> import torch
>>> wave = parse("sin(3*x0)*x1")
>>> wave(torch.tensor([[0.5, 2.0]]))
tensor([1.9950])
>>> round(wave.lipschitz(side=1.0), 3)
3.0
>>> parse("x0.__class__")
Traceback (most recent call last):
ValueError: a formula cannot contain 'x0.__class__': use numbers, x0..x9, + - * / **, pi, e and functions
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lehr.interval import Ranged, constant, variables

VARIABLES = 10
CONSTANTS = {"pi": math.pi, "e": math.e}
LONGEST = 1000  # characters
DEEPEST = 100  # nested operations
LARGEST_EXPONENT = 64
# Boxes on which the gradient is enclosed: more give a tighter bound but take longer; these take milliseconds.
BOXES = 2**14

# name -> the least and the largest number of arguments, and the function
_FUNCTIONS: dict[str, tuple[int, float, Callable[..., Tensor]]] = {
    "abs": (1, 1, torch.abs),
    "atan": (1, 1, torch.atan),
    "cos": (1, 1, torch.cos),
    "exp": (1, 1, torch.exp),
    "log": (1, 1, torch.log),
    "max": (2, math.inf, torch.maximum),
    "min": (2, math.inf, torch.minimum),
    "relu": (1, 1, torch.relu),
    "sigmoid": (1, 1, torch.sigmoid),
    "sin": (1, 1, torch.sin),
    "sqrt": (1, 1, torch.sqrt),
    "tanh": (1, 1, torch.tanh),
}
_OPERATORS: dict[type[ast.AST], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


@dataclass(frozen=True)
class Variable:
    """Push coordinate `index`."""

    index: int


@dataclass(frozen=True)
class Power:
    """Raise the top of the stack to a constant power."""

    exponent: float


@dataclass(frozen=True)
class Apply:
    """Replace the top one or two values of the stack by a function of them."""

    name: str
    arguments: int


Step = float | Variable | Power | Apply


@dataclass(frozen=True)
class Expression:
    """A formula: its text, its program, and its dimension: one more than the largest variable index, at least 1."""

    text: str
    program: tuple[Step, ...]
    dimension: int

    def __call__(self, x: Tensor) -> Tensor:
        """Return its values at points (..., dimension or more) -> (...)."""
        if x.ndim == 0 or x.shape[-1] < self.dimension:
            raise ValueError(f"{self.text!r} needs points of {self.dimension} coordinates, got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"a formula needs floating-point points, got {x.dtype}")
        operations = {name: function for name, (_, _, function) in _FUNCTIONS.items()} | {
            "+": torch.add,
            "-": torch.sub,
            "*": torch.mul,
            "/": torch.div,
            "neg": torch.neg,
        }
        return self._run(
            constant=lambda value: torch.full_like(x[..., 0], value),
            variables=x.unbind(-1),
            power=torch.pow,
            operations=operations,
        )

    def lipschitz(self, side: float = 1.0, dimension: int | None = None) -> float:
        """Return a certified Lipschitz constant on [0, side]^dimension in the Euclidean norm.

        Interval arithmetic encloses the gradient on each of many small boxes that tile the domain; its largest possible
        norm is the constant, slightly larger than the smallest one.
        """
        dimension = self.dimension if dimension is None else dimension
        if dimension < self.dimension:
            raise ValueError(f"{self.text!r} has {self.dimension} coordinates, got dimension {dimension}")
        if not 0 < side < math.inf:
            raise ValueError(f"side must be positive and finite, got {side}")
        coordinates = variables([0.0] * self.dimension, [side] * self.dimension, BOXES)  # no slope along the others
        operations: dict[str, Callable[..., Ranged]] = {
            name: lambda u, name=name: u.apply(name) for name, (least, _, _) in _FUNCTIONS.items() if least == 1
        } | {
            "max": Ranged.maximum,
            "min": Ranged.minimum,
            "+": Ranged.__add__,
            "-": Ranged.__sub__,
            "*": Ranged.__mul__,
            "/": Ranged.__truediv__,
            "neg": Ranged.__neg__,
        }
        try:
            result = self._run(
                constant=lambda value: constant(value, coordinates[0]),
                variables=coordinates,
                power=Ranged.power,
                operations=operations,
            )
            steepness = result.steepness()
        except ValueError as error:
            raise ValueError(f"{self.text!r} on [0, {side:g}]^{dimension}: {error}") from None
        if steepness == math.inf:
            raise ValueError(
                f"no finite Lipschitz constant found for {self.text!r} on [0, {side:g}]^{dimension}: "
                f"interval arithmetic finds no bound of its slope; if you know one, pass it as lipschitz"
            )
        return steepness

    def _run(
        self,
        constant: Callable[[float], Any],
        variables: Any,
        power: Callable[[Any, float], Any],
        operations: Mapping[str, Callable[..., Any]],
    ) -> Any:
        """Run the program in the given arithmetic: numbers for a value, ranges for a bound."""
        stack: list[Any] = []
        for step in self.program:
            if isinstance(step, Variable):
                stack.append(variables[step.index])
            elif isinstance(step, Power):
                stack.append(power(stack.pop(), step.exponent))
            elif isinstance(step, Apply):
                arguments = [stack.pop() for _ in range(step.arguments)][::-1]
                stack.append(operations[step.name](*arguments))
            else:
                stack.append(constant(step))
        (result,) = stack
        return result

    def __str__(self) -> str:
        return self.text


def parse(text: str) -> Expression:
    """Return the formula in `text`; raise ValueError, naming the wrong part, if it is not one."""
    if len(text) > LONGEST:
        raise ValueError(f"a formula may have at most {LONGEST} characters, got {len(text)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser's warnings about Python style
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "it nests too deeply or holds invalid characters"
        raise ValueError(f"{text!r} is not a formula: {reason}") from None
    program: list[Step] = []
    _translate(tree, text.strip(), program, depth=0)
    indices = [step.index for step in program if isinstance(step, Variable)]
    return Expression(text.strip(), tuple(program), 1 + max(indices, default=0))


def _translate(node: ast.expr, text: str, program: list[Step], depth: int) -> None:
    def part(node: ast.AST = node) -> str:
        return repr(ast.get_source_segment(text, node) or text)

    def down(*nodes: ast.expr) -> None:
        for node in nodes:
            _translate(node, text, program, depth + 1)

    if depth > DEEPEST:
        raise ValueError(f"a formula may nest {DEEPEST} operations, but {part()} lies deeper")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            program.append(_finite(value, part()))
        case ast.Name(id=name) if name in CONSTANTS:
            program.append(CONSTANTS[name])
        case ast.Name(id=name) if len(name) == 2 and name[0] == "x" and name[1] in "0123456789":
            program.append(Variable(int(name[1])))
        case ast.Name(id=name):
            raise ValueError(f"unknown name {name!r}: the variables are x0..x{VARIABLES - 1}, the constants pi and e")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            down(operand)
            program.append(Apply("neg", 1))
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            down(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            down(left)
            program.append(Power(_exponent(right, part(right))))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            down(left, right)
            program.append(Apply(_OPERATORS[type(op)], 2))
        case ast.BinOp(op=ast.BitXor()):
            raise ValueError(f"a power is written **, not ^: {part()}")
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            least, most, _ = _FUNCTIONS[name]
            if not least <= len(arguments) <= most:
                wanted = "one argument" if most == 1 else f"at least {least} arguments"
                raise ValueError(f"{name} takes {wanted}, got {len(arguments)}: {part()}")
            down(arguments[0])
            if least == 1:
                program.append(Apply(name, 1))
            for argument in arguments[1:]:
                down(argument)
                program.append(Apply(name, 2))
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            raise ValueError(f"unknown function {name!r} in {part()}: the functions are {', '.join(_FUNCTIONS)}")
        case _:
            allowed = f"numbers, x0..x{VARIABLES - 1}, + - * / **, pi, e and functions"
            raise ValueError(f"a formula cannot contain {part()}: use {allowed}")


def _finite(value: float, part: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{part} is too large a number")
    return number


def _exponent(node: ast.expr, part: str) -> float:
    sign = 1.0
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        sign = -sign if isinstance(node.op, ast.USub) else sign
        node = node.operand
    if not isinstance(node, ast.Constant) or type(node.value) not in (int, float):
        raise ValueError(f"an exponent must be a number, got {part}")
    exponent = sign * _finite(node.value, part)  # pyright: ignore[reportArgumentType]
    if abs(exponent) > LARGEST_EXPONENT:
        raise ValueError(f"an exponent must lie between -{LARGEST_EXPONENT} and {LARGEST_EXPONENT}, got {part}")
    return exponent
