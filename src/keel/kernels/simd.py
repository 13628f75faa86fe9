"""SIMD vectors of 16 float32 lanes as a Numba type.

Auto-vectorized loops carry checks that cost more than a row of a hundred numbers. Tables are contiguous, with rows of a
multiple of 16 numbers. On machines with narrower registers the compiler splits the vectors.
"""

import operator
from collections.abc import Callable
from functools import update_wrapper
from inspect import signature
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

WIDTH = 16
_FLOAT, _INTEGER = ir.FloatType(), ir.IntType(32)
_LANES, _INTEGERS = ir.VectorType(_FLOAT, WIDTH), ir.VectorType(_INTEGER, WIDTH)

instruction: Any = intrinsic  # its own type asks callers for the first parameter, which Numba supplies


class _Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes")


LANES = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any):
        super().__init__(dmm, fe_type, _LANES)


def round_up_to_lanes(width: int) -> int:
    """The next multiple of 16."""
    return -(-width // WIDTH) * WIDTH


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Address of table[row, column] in a contiguous table."""
    table = context.make_array(signature.args[0])(context, builder, arguments[0])
    row, column = (
        context.cast(builder, value, kind, types.intp)
        for value, kind in zip(arguments[1:3], signature.args[1:3], strict=True)
    )
    width = builder.extract_value(table.shape, signature.args[0].ndim - 1)
    return builder.gep(table.data, [builder.add(builder.mul(row, width), column)])


@njit(cache=True, nogil=True)
def zeros(rows, width):
    """Zeros [rows, width] aligned to cache lines, for a width that is a multiple of 16."""
    flat = np.zeros(rows * width + 16, np.float32)
    start = -flat.ctypes.data % 64 // 4
    return flat[start : start + rows * width].reshape(rows, width)


@instruction
def load(typingctx: Any, table: Any, row: Any, column: Any) -> Any:
    """Read 16 lanes at table[row, column], without bounds check."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.bitcast(_address(context, builder, signature, arguments), _LANES.as_pointer())
        return builder.load(address, align=4)

    return LANES(table, row, column), code


@instruction
def store(typingctx: Any, table: Any, row: Any, column: Any, value: Any) -> Any:
    """Write 16 lanes to table[row, column]."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.bitcast(_address(context, builder, signature, arguments), _LANES.as_pointer())
        builder.store(arguments[3], address, align=4)
        return context.get_dummy_value()

    return types.void(table, row, column, LANES), code


@instruction
def prefetch(typingctx: Any, table: Any, row: Any, column: Any) -> Any:
    """Prefetch the cache line of table[row, column]."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.bitcast(_address(context, builder, signature, arguments), ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [address.type, _INTEGER, _INTEGER, _INTEGER])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        builder.call(function, [address, _INTEGER(1), _INTEGER(3), _INTEGER(1)])  # for writing; high locality; data
        return context.get_dummy_value()

    return types.void(table, row, column), code


@instruction
def broadcast(typingctx: Any, value: Any) -> Any:
    """One number in all lanes."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = builder.insert_element(ir.Constant(_LANES, ir.Undefined), arguments[0], _INTEGER(0))
        return builder.shuffle_vector(first, first, ir.Constant(_INTEGERS, [0] * WIDTH))

    return LANES(types.float32), code


def _register_operator(sign: Any, instruction: str) -> None:
    """Make an operator on two vectors an instruction."""

    @type_callable(sign)
    def kind(context: Any) -> Any:
        return lambda a, b: LANES if a == b == LANES else None

    @lower_builtin(sign, LANES, LANES)
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(builder, instruction)(*arguments, flags=("contract",))  # allows fused multiply-add


_register_operator(operator.add, "fadd")
_register_operator(operator.iadd, "fadd")
_register_operator(operator.sub, "fsub")
_register_operator(operator.mul, "fmul")
_register_operator(operator.truediv, "fdiv")


def _lane_wise(build: Callable[..., Any]) -> Any:
    """The instruction build(builder, *vectors) on vectors, which gives a vector."""
    count = len(signature(build).parameters) - 1

    def typed(typingctx: Any, *vectors: Any) -> Any:
        return LANES(*[LANES] * count), lambda context, builder, signature, arguments: build(builder, *arguments)

    return intrinsic(update_wrapper(typed, build))


@_lane_wise
def maximum(builder: Any, a: Any, b: Any) -> Any:
    """Lane-wise maximum."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@_lane_wise
def where_nonnegative(builder: Any, where: Any, a: Any, b: Any) -> Any:
    """Lane-wise a where `where` >= 0, else b."""
    return builder.select(builder.fcmp_ordered(">=", where, ir.Constant(_LANES, [0.0] * WIDTH)), a, b)


@_lane_wise
def truncate(builder: Any, x: Any) -> Any:
    """Lane-wise truncation toward zero."""
    return builder.sitofp(builder.fptosi(x, _INTEGERS), _LANES)


@_lane_wise
def exp2_of_integer(builder: Any, whole: Any) -> Any:
    """Lane-wise 2^n for integers -126 to 127, by writing the exponent bits of a float."""
    bias, shift = (ir.Constant(_INTEGERS, [value] * WIDTH) for value in (127, 23))
    return builder.bitcast(builder.shl(builder.add(builder.fptosi(whole, _INTEGERS), bias), shift), _LANES)


@instruction
def lane_sums(typingctx: Any, several: Any) -> Any:
    """Horizontal sums of up to 16 vectors, one per lane; the other lanes are 0."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero = ir.Constant(_LANES, [0.0] * WIDTH)
        rows = [builder.extract_value(arguments[0], number) for number in range(len(several))]
        rows += [zero] * (WIDTH - len(several))
        # Each pass adds the halves of all parts and packs two vectors into one; there are four passes.
        while len(rows) > 1:
            size = len(rows)  # of a part
            first = [part + lane for part in range(0, 2 * WIDTH, size) for lane in range(size // 2)]
            halves = [ir.Constant(_INTEGERS, [lane + more for lane in first]) for more in (0, size // 2)]
            rows = [
                zero if a is b is zero else builder.fadd(*(builder.shuffle_vector(a, b, half) for half in halves))
                for a, b in zip(rows[::2], rows[1::2], strict=True)
            ]
        return rows[0]

    return LANES(several), code
