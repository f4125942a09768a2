"""The order-statistic kernel as straight machine code for one row count and two ranks, generated with LLVM.

As on a GPU (`coterie.aggregators.cuda`), with a vector register in the place of a thread: some columns of all rows are
loaded, run through the comparators as minima and maxima between registers, and summed; nothing but the result is
written. So few rows take no longer than reading them. LLVM needs tens of milliseconds for a program, so there is one
only for what has been asked for often enough. The result has the same bits as that of `order_statistics`, but for
the sign of a zero.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numpy.typing import NDArray

from coterie._src.arrays import Ints

MOST_ROWS = 64
"""More do not fit into registers, and gain little."""
REPAID_BY = 1 << 19
"""Values for each comparator, which costs LLVM some 0.3 ms: about what a program saves on so many."""
FEWEST_VALUES = 1 << 17
"""What takes a tenth of a millisecond anyway."""
PLACE = ir.IntType(64)


@dataclass(frozen=True)
class Program:
    """Machine code. width: columns of a vector. engine: what keeps the code alive.

    call: for whole vectors, with the address of the rows' addresses, the first column, the last + 1 and the address of
    the result.
    """

    width: int
    call: Callable[[int, int, int, int], None]
    engine: Any


@cache
def vector_bytes() -> int:
    """Of this processor's vector registers."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = binding.get_host_cpu_features()
    return 64 if features.get("avx512f") else 32 if features.get("avx") else 16


def serves(rows: NDArray[Any], count: int) -> bool:
    """Whether a program can read `count` of these rows."""
    beside = rows.strides[1] == rows.itemsize
    return 2 <= count <= MOST_ROWS and beside and rows.shape[1] * rows.itemsize >= vector_bytes()


def source(pairs: NDArray[np.int32], rows: int, low: int, high: int, dtype: str, width: int) -> str:
    """The program in LLVM's own language; width: columns of a vector."""
    number = ir.FloatType() if dtype == "float32" else ir.DoubleType()
    vector, wide = ir.VectorType(number, width), ir.VectorType(ir.DoubleType(), width)
    size, count = np.dtype(dtype).itemsize, high - low
    module = ir.Module(name="order statistics")
    module.triple = binding.get_process_triple()
    arguments = [PLACE.as_pointer(), PLACE, PLACE, PLACE]
    program = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), "mean_between_ranks")
    table, first, last, out = program.args
    entry, turn, rare, store, done = (program.append_basic_block() for _ in range(5))

    def widened(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
        return b.fpext(value, wide) if dtype == "float32" else value

    def all_same(value: float) -> ir.Constant:
        return ir.Constant(wide, [value] * width)

    def anywhere(b: ir.IRBuilder, lanes: ir.Value) -> ir.Value:
        bits = ir.IntType(width)
        return b.icmp_unsigned("!=", b.bitcast(lanes, bits), bits(0))

    b = ir.IRBuilder(entry)
    starts = [b.load(b.gep(table, [PLACE(i)])) for i in range(rows)]
    b.cbranch(b.icmp_signed("<", first, last), turn, done)

    b = ir.IRBuilder(turn)
    column = b.phi(PLACE)
    column.add_incoming(first, entry)
    offset = b.mul(column, PLACE(size))
    values = [b.load(b.inttoptr(b.add(start, offset), vector.as_pointer()), align=1) for start in starts]
    unknown = ir.Constant(ir.VectorType(ir.IntType(1), width), [False] * width)
    for value in values:
        unknown = b.or_(unknown, b.fcmp_unordered("uno", value, value))
    for i, j in pairs.tolist():
        less = b.fcmp_ordered("<", values[i], values[j])
        values[i], values[j] = b.select(less, values[i], values[j]), b.select(less, values[j], values[i])
    summed = [widened(b, value) for value in values[low:high]]
    base, total = summed[0], all_same(0.0)
    for value in summed[1:]:
        total = b.fadd(total, b.fsub(value, base))
    result = base if count == 1 else b.fadd(base, b.fdiv(total, all_same(count)))
    spread = b.fcmp_unordered("uno", b.fsub(result, result), all_same(0.0))  # infinite rows, or a spread beyond float64
    b.cbranch(anywhere(b, spread), rare, store)

    b = ir.IRBuilder(rare)
    plain = all_same(0.0)
    for value in summed:
        plain = b.fadd(plain, b.fdiv(value, all_same(count)))
    mended = b.select(spread, plain, result)
    b.branch(store)

    b = ir.IRBuilder(store)
    found = b.phi(wide)
    found.add_incoming(result, turn)
    found.add_incoming(mended, rare)
    narrow = b.fptrunc(found, vector) if dtype == "float32" else found
    told = b.select(unknown, ir.Constant(vector, [float("nan")] * width), narrow)
    b.store(told, b.inttoptr(b.add(out, offset), vector.as_pointer()), align=1)
    after = b.add(column, PLACE(width))
    column.add_incoming(after, store)
    b.cbranch(b.icmp_signed("<", after, last), turn, done)
    ir.IRBuilder(done).ret_void()
    return str(module)


def compiled_program(pairs: NDArray[np.int32], rows: int, low: int, high: int, dtype: str, vector: int = 0) -> Program:
    """The program for `rows` rows and the ranks [low, high), with the comparators `pairs`.

    vector: bytes of a vector; 0: as this processor has them.
    """
    own = vector_bytes()
    width = (vector or own) // np.dtype(dtype).itemsize
    module = binding.parse_assembly(source(pairs, rows, low, high, dtype, width))
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=2
    )
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)  # whose calls leave the interpreter to others
    return Program(width, kind(engine.get_function_address("mean_between_ranks")), engine)


def mean_of_columns(
    program: Program, rows: NDArray[Any], members: Ints, columns: tuple[int, int], out: NDArray[Any]
) -> None:
    """out[c] = what the program makes of rows[members, c], for a range of columns.

    The last columns are computed with those before them, a second time if need be: so all vectors are whole.
    """
    width, (first, last) = program.width, columns
    addresses = rows.ctypes.data + np.asarray(members, dtype=np.int64) * rows.strides[0]
    whole = first + (last - first) // width * width
    program.call(addresses.ctypes.data, first, whole, out.ctypes.data)
    if whole < last:
        program.call(addresses.ctypes.data, last - width, last, out.ctypes.data)


class Programs:
    """The programs that have paid, or will: one is compiled when as many values have gone by as would have repaid it.

    So whatever comes, waiting and compiling cost no more than twice what the better of the two would have.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.seen: Counter[tuple[int, int, int, str]] = Counter()
        self.known: dict[tuple[int, int, int, str], Program] = {}

    def get(self, pairs: NDArray[np.int32], rows: int, low: int, high: int, values: NDArray[Any]) -> Program | None:
        """The program for `rows` of the given values; None while there is none."""
        if rows * values.shape[1] < FEWEST_VALUES or not len(pairs) or not serves(values, rows):
            return None
        name = rows, low, high, values.dtype.name
        if name not in self.known:
            with self.lock:
                self.seen[name] += rows * values.shape[1]
                if name not in self.known and self.seen[name] > REPAID_BY * len(pairs):
                    self.known[name] = compiled_program(pairs, rows, low, high, values.dtype.name)
        return self.known.get(name)
