"""Small changes of a syntax tree, one at a time: what a test that asserts something should notice."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
}
PAIRS = (
    ("min", "max"),
    ("minimum", "maximum"),
    ("nanmin", "nanmax"),
    ("argmin", "argmax"),
    ("any", "all"),
    ("floor", "ceil"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
)
SWAPPED = {name: other for pair in PAIRS for name, other in (pair, pair[::-1])}
SORTED = {"sorted", "sort", "argsort", "lexsort"}
LEAVING = (ast.Return, ast.Continue, ast.Break, ast.Raise)
NEGLIGIBLE = 1e-100
"""A float below it, or above its inverse, only keeps a division or a comparison finite; another one does as well."""
# what no behaviour follows from: annotations, assertions for the type checker, texts of errors
SKIPPED = (ast.Import, ast.ImportFrom, ast.Assert, ast.Raise, ast.JoinedStr)


@dataclass(frozen=True)
class Mutant:
    """One change. `before` and `after` are the statement, or the head of a compound one, without and with it."""

    function: str
    line: int
    before: str
    after: str
    path: tuple[tuple[str, int | None], ...]  # from the module to the changed node
    node: ast.AST

    @property
    def key(self) -> tuple[str, str, str]:
        """What names the mutant wherever its line moves."""
        return self.function, self.before, self.after


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module, each text once per function and statement, in the order of the file."""
    found: dict[tuple[str, str, str], Mutant] = {}
    tree = ast.parse(source)
    heads: dict[ast.stmt, tuple[ast.stmt, str]] = {}
    for function, statement, path, node in _places(tree):
        if statement not in heads:
            head = _head(statement)
            heads[statement] = head, _text(head)
        head, before = heads[statement]
        for changed in _changes(node):
            after = _text(_replaced(head, path[1], changed) if path[1] else _head(changed))
            if after != before:
                mutant = Mutant(function, statement.lineno, before, after, (*path[0], *path[1]), changed)
                found.setdefault(mutant.key, mutant)
    return list(found.values())


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """The tree of the module with the change, ready to compile."""
    return ast.fix_missing_locations(_replaced(ast.parse(source), mutant.path, mutant.node))


def sample(found: list[Mutant], count: int, seed: str) -> list[Mutant]:
    """`count` of the mutants, drawn by their keys: the sample stays when lines move or other functions change."""

    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256("\0".join((seed, *mutant.key)).encode()).digest()

    chosen = sorted(found, key=rank)[:count]
    return sorted(chosen, key=lambda mutant: mutant.line)


Steps = tuple[tuple[str, int | None], ...]


def _places(tree: ast.Module) -> Iterator[tuple[str, ast.stmt, tuple[Steps, Steps], ast.AST]]:
    """Every node with its function, its statement, and the steps to the statement and from there to the node."""

    def walk(
        node: ast.AST, function: str, statement: ast.stmt | None, to: Steps, within: Steps
    ) -> Iterator[tuple[str, ast.stmt, tuple[Steps, Steps], ast.AST]]:
        if isinstance(node, SKIPPED):
            return
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.FunctionDef) and ast.unparse(node.body[-1]) == "...":
            return  # a method of a protocol
        if isinstance(node, ast.stmt):
            statement, to, within = node, to + within, ()
        if statement is not None:
            yield function, statement, (to, within), node
        inside = function
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inside = node.name if function == "<module>" else f"{function}.{node.name}"
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params", "decorator_list"):
                continue
            if isinstance(node, ast.keyword) and node.arg in ("axis", "strict"):
                continue  # see `_axis`; `zip(…, strict=True)` is an assertion
            if name == "value" and isinstance(node, ast.Expr) and isinstance(value, ast.Constant):
                continue  # a docstring
            below = inside if name in ("body", "orelse", "args") else function
            for i, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(child, ast.AST):
                    yield from walk(child, below, statement, to, (*within, (name, i)))

    yield from walk(tree, "<module>", None, (), ())


def _replaced(root: Any, path: Steps, node: ast.AST) -> Any:
    """A copy of the tree with another node at the end of the path."""
    if not path:
        return copy.deepcopy(node)
    root = copy.deepcopy(root)
    parent = root
    for name, i in path[:-1]:
        parent = getattr(parent, name) if i is None else getattr(parent, name)[i]
    name, i = path[-1]
    old = getattr(parent, name) if i is None else getattr(parent, name)[i]
    new = ast.copy_location(copy.deepcopy(node), old) if hasattr(old, "lineno") else copy.deepcopy(node)
    if i is None:
        setattr(parent, name, new)
    else:
        getattr(parent, name)[i] = new
    return root


def _head(statement: Any) -> Any:
    """A statement, a compound one without its body."""
    short = copy.copy(statement)
    for name in ("body", "orelse", "finalbody"):
        if getattr(short, name, None):
            setattr(short, name, [ast.Pass()] if name == "body" or isinstance(short, ast.Try) else [])
    return short


def _text(head: ast.stmt) -> str:
    return ast.unparse(ast.fix_missing_locations(copy.copy(head))).removesuffix("\n    pass").removesuffix(":")


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that may stand in the place of this one."""
    for kind, change in CHANGES:
        if isinstance(node, kind):
            yield from change(node)


def _compare(node: ast.Compare) -> Iterator[ast.AST]:
    for i, operator in enumerate(node.ops):
        for other in COMPARED.get(type(operator), ()):
            yield ast.Compare(node.left, [*node.ops[:i], other(), *node.ops[i + 1 :]], node.comparators)


def _calculate(node: ast.BinOp | ast.AugAssign) -> Iterator[ast.AST]:
    if other := CALCULATED.get(type(node.op)):
        changed = copy.copy(node)
        changed.op = other()
        yield changed
    if isinstance(node, ast.AugAssign):
        yield ast.Pass()


def _unary(node: ast.UnaryOp) -> Iterator[ast.AST]:
    if not isinstance(node.op, ast.UAdd):
        yield node.operand


def _connect(node: ast.BoolOp) -> Iterator[ast.AST]:
    yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    for i in range(len(node.values)):
        rest = node.values[:i] + node.values[i + 1 :]
        yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


def _constant(node: ast.Constant) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        if value > 0:
            yield ast.Constant(value - 1)
    elif isinstance(value, float) and (value == 0 or NEGLIGIBLE < abs(value) < 1 / NEGLIGIBLE):
        yield ast.Constant(1.5 * value if value else 1.0)


def _axis(node: ast.keyword) -> Iterator[ast.AST]:
    if node.arg == "axis" and isinstance(node.value, ast.Constant) and node.value.value in (0, 1):
        yield ast.keyword("axis", ast.Constant(1 - node.value.value))


def _branch(node: ast.If | ast.IfExp) -> Iterator[ast.AST]:
    if isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
        return
    yield ast.If(ast.Constant(False), node.body, node.orelse)
    if not isinstance(node.body[-1], LEAVING):
        yield ast.If(ast.Constant(True), node.body, node.orelse)


def _call(node: ast.Call) -> Iterator[ast.AST]:
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if name in SWAPPED:
        function: ast.expr = ast.Name(SWAPPED[name], ast.Load())
        if isinstance(node.func, ast.Attribute):
            function = ast.Attribute(node.func.value, SWAPPED[name], ast.Load())
        yield ast.Call(function, node.args, node.keywords)
    if name in SORTED:
        backwards = ast.Slice(None, None, ast.UnaryOp(ast.USub(), ast.Constant(1)))
        yield ast.Subscript(node, backwards, ast.Load())
    if name == "abs" and node.args:
        yield node.args[0]
    if name == "range":
        for i, bound in enumerate(node.args):
            yield ast.Call(node.func, [*node.args[:i], _one_more(bound), *node.args[i + 1 :]], node.keywords)


def _slice(node: ast.Slice) -> Iterator[ast.AST]:
    if node.lower is not None:
        yield ast.Slice(_one_more(node.lower), node.upper, node.step)
    if node.upper is not None:
        yield ast.Slice(node.lower, _one_more(node.upper), node.step)


def _one_more(value: ast.expr) -> ast.expr:
    return ast.BinOp(value, ast.Add(), ast.Constant(1))


def _effect(node: ast.Expr) -> Iterator[ast.AST]:
    if isinstance(node.value, ast.Call):
        yield ast.Pass()


CHANGES: tuple[tuple[Any, Callable[[Any], Iterator[ast.AST]]], ...] = (
    (ast.Compare, _compare),
    (ast.BinOp | ast.AugAssign, _calculate),
    (ast.UnaryOp, _unary),
    (ast.BoolOp, _connect),
    (ast.Constant, _constant),
    (ast.keyword, _axis),
    (ast.If | ast.IfExp, _branch),
    (ast.Call, _call),
    (ast.Slice, _slice),
    (ast.Expr, _effect),
)
