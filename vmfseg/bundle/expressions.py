# SPDX-License-Identifier: Apache-2.0
"""The small language that ``$`` expressions of a config from elsewhere may be written in.

MONAI evaluates them with Python's ``eval``. Here they are parsed, as the text that MONAI makes of them, and every node
must be of a known kind: plain values, references to other entries, arithmetic, comparisons, a choice, simple loops and
functions of one line, names of the libraries' functions in :data:`vmfseg.bundle.targets.FUNCTIONS`, and the attributes
below of anything else. What is not known is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from monai.bundle.reference_resolver import ReferenceResolver

from vmfseg.utils import VmfError

from .targets import FUNCTIONS, MODULES

__all__ = [
    "DEFAULT_NAMES",
    "broken_expression",
    "expression_problem",
    "imported_names",
    "is_import",
    "parse_expression",
    "reference_of",
]

#: What MONAI gives to every expression.
DEFAULT_NAMES = {"monai": "monai", "torch": "torch", "np": "numpy", "numpy": "numpy"}
_MAX_LENGTH = 1000
_MAX_NUMBER = 10**9
_REFERENCES = "__local_refs"

_BUILTINS = frozenset(
    [
        "False", "None", "True", "abs", "all", "any", "bool", "dict", "enumerate", "filter", "float", "int",
        "isinstance", "len", "list", "map", "max", "min", "print", "range", "reversed", "round", "set", "sorted",
        "str", "sum", "tuple", "zip",
    ]
)  # fmt: skip
#: Attributes and methods of values: data of our own objects, and what MONAI's bundles use. None of them writes a file,
#: whatever the value is (``replace`` of a text is harmless, that of a path moves a file); ``run`` has its own rule.
_ATTRIBUTES = frozenset(
    [
        "fingerprint", "images", "is_phantom", "labeled", "labels", "target", "unlabeled", "validation", "weak",
        "best_metric", "device", "dtype", "epoch", "iteration", "max_epochs", "metrics", "module", "ndim", "network",
        "optimizer", "output", "shape", "state", "attach", "describe", "run", "set_trainer", "to", "cpu", "cuda",
        "eval", "train", "float", "long", "item", "mean", "sum", "max", "min", "argmax", "squeeze", "unsqueeze",
        "parameters", "named_parameters", "items", "keys", "values", "get", "split", "join", "strip",
        "lower", "upper", "startswith", "endswith", "name", "parent", "stem", "suffix",
    ]
)  # fmt: skip
#: Classes whose instances a config may call.
_CALLED = frozenset({"CheckpointLoader", "monai.handlers.CheckpointLoader", "vmfseg.model.ModelLoader"})

_PLAIN = (
    ast.Expression, ast.Load, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not,
    ast.USub, ast.UAdd, ast.BinOp, ast.Add, ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Compare, ast.Eq, ast.NotEq,
    ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot, ast.In, ast.IfExp, ast.Slice, ast.Starred,
    ast.keyword, ast.JoinedStr, ast.FormattedValue, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp,
    ast.arguments,
    ast.NotIn,  # codespell:ignore notin
)  # fmt: skip


def parse_expression(text: str) -> ast.Expression:
    """Parse an expression, ``$`` in front, as MONAI would evaluate it: references have become dictionary look-ups.

    Raises:
        SyntaxError: if it is no Python expression.
    """
    found = dict.fromkeys(ReferenceResolver.match_refs_pattern(text))
    code = str(ReferenceResolver.update_refs_pattern(text, found))[1:].strip()
    return ast.parse(code, mode="eval")


def broken_expression(text: str) -> VmfError | None:
    """Return VMF314 for a text with ``$`` in front that is no Python, or ``None``.

    Example:
        >>> broken_expression("$@a + 1"), broken_expression("$(@a").found
        (None, "$(@a: '(' was never closed")
    """
    try:
        if is_import(text):
            ast.parse(text[1:].strip())
        else:
            parse_expression(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return VmfError(
            "VMF314",
            rule="the text after $ is no Python expression",
            found=f"{text[:100]}: {getattr(error, 'msg', error)}",
            fix="correct the expression, or leave out the $ for plain text",
        )
    return None


def is_import(value: Any) -> bool:
    """Whether MONAI takes an entry for an import, which it follows wherever it stands; a comment may come first."""
    if not isinstance(value, str) or not value.startswith("$") or "import" not in value:
        return False
    for text in (value[1:], value[1:].strip()):
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if body and isinstance(body[0], ast.Import | ast.ImportFrom):
            return True
    return False


def imported_names(text: str) -> dict[str, str]:
    """Return what an import of a config binds: name to dotted path.

    Raises:
        ValueError: with the reason why it is refused.

    Example:
        >>> imported_names("$import numpy as np"), imported_names("$from monai.handlers import from_engine")
        ({'np': 'numpy'}, {'from_engine': 'monai.handlers.from_engine'})
        >>> imported_names("$import scripts")
        Traceback (most recent call last):
        ValueError: the module scripts is not in the list of what bundles may import
    """
    body = ast.parse(text[1:].strip()).body
    if len(body) != 1 or not isinstance(body[0], ast.Import | ast.ImportFrom) or len(body[0].names) != 1:
        raise ValueError("an import must be one statement with one name")
    alias, node = body[0].names[0], body[0]
    if isinstance(node, ast.ImportFrom):
        path = f"{node.module}.{alias.name}"
        allowed = not node.level and (path in FUNCTIONS or path in MODULES)
    else:
        path, allowed = alias.name, alias.name in MODULES
    if not allowed:
        raise ValueError(f"the module {path} is not in the list of what bundles may import")
    bound = alias.asname or alias.name
    if DEFAULT_NAMES.get(bound, path) != path or bound in _BUILTINS or bound.startswith("_"):
        raise ValueError(f"the name {bound} must not stand for {path}")
    return {bound: path}


def reference_of(node: ast.AST) -> str | None:
    """Return the id that a node refers to, or ``None`` if it is no reference."""
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == _REFERENCES
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    ):
        return node.slice.value
    return None


def expression_problem(text: str, names: Mapping[str, str], targets: Mapping[str, str] | None = None) -> str:
    """Return why an expression is refused, or an empty string.

    Args:
        text: with the ``$`` in front.
        names: what the imports bind, see :func:`imported_names`.
        targets: ``_target_`` by id, for references that are called.

    Raises:
        SyntaxError: if it is no Python expression at all.

    Example:
        >>> expression_problem("$@epochs * len(@loader) // 2", DEFAULT_NAMES)
        ''
        >>> expression_problem("$__import__('os').system('id')", DEFAULT_NAMES)
        'the attribute system, which is not in the list of what configs may use'
        >>> expression_problem("$torch.hub.load('x', 'y')", DEFAULT_NAMES)
        'torch.hub.load, which is not in the list of what bundles may use'
    """
    if len(text) > _MAX_LENGTH or not text.isascii():
        return f"letters beyond ASCII, or more than {_MAX_LENGTH} of them"
    return next(_Check(names, targets or {}).problems(parse_expression(text), frozenset()), "")


class _Check:
    """One walk over an expression."""

    def __init__(self, names: Mapping[str, str], targets: Mapping[str, str]) -> None:
        self.names, self.targets = names, targets

    def problems(self, node: ast.AST, bound: frozenset[str]) -> Iterator[str]:
        """Yield what is wrong with a node and all below it; ``bound`` are names of loops and functions around it."""
        if reference_of(node) is not None:
            return
        if isinstance(node, ast.Name | ast.Attribute):
            yield from self._name(node, bound)
        elif isinstance(node, ast.Call):
            yield from self._call(node, bound)
        elif isinstance(node, ast.Constant):
            yield from self._constant(node)
        elif isinstance(node, ast.Lambda):
            own = frozenset(argument.arg for argument in node.args.args)
            yield from self._new_names(own)
            if ast.dump(ast.arguments([], node.args.args, None, [], [], None, [])) != ast.dump(node.args):
                yield "a function with more than plain arguments"
            yield from self.problems(node.body, bound | own)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            yield from self._loop(node, bound)
        elif isinstance(node, ast.Subscript):
            yield from self.problems(node.value, bound)
            yield from self.problems(node.slice, bound)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            yield from self._product(node, bound)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and not _is_number(node.left):
            if isinstance(node.left, ast.Constant):
                yield "the formatting of text by %"
            yield from self._below(node, bound)
        elif isinstance(node, _PLAIN):
            yield from self._below(node, bound)
        else:
            yield f"{type(node).__name__}, which is not part of what configs may say"

    def _below(self, node: ast.AST, bound: frozenset[str]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            yield from self.problems(child, bound)

    def _name(self, node: ast.Name | ast.Attribute, bound: frozenset[str], called: bool = False) -> Iterator[str]:
        parts, root = _chain(node)
        if any(part.startswith("_") for part in parts):
            yield f"the name {next(part for part in parts if part.startswith('_'))}, which begins with an underscore"
        elif isinstance(root, ast.Name) and root.id not in bound:
            yield from self._library([root.id, *parts])
        else:
            unknown = [part for part in parts if part not in _ATTRIBUTES]
            if "run" in (parts[:-1] if called else parts):
                yield "the method run without its arguments"
            if unknown:
                yield f"the attribute {unknown[0]}, which is not in the list of what configs may use"
            if not isinstance(root, ast.Name):
                yield from self.problems(root, bound)

    def _library(self, parts: list[str]) -> Iterator[str]:
        if parts[0] in self.names:
            path = ".".join([self.names[parts[0]], *parts[1:]])
            if path not in FUNCTIONS:
                yield f"{path}, which is not in the list of what bundles may use"
        elif parts[0] not in _BUILTINS:
            yield f"the name {parts[0]}, which is not known"
        elif len(parts) > 1:
            yield f"the attribute {parts[1]} of a built-in"

    def _call(self, node: ast.Call, bound: frozenset[str]) -> Iterator[str]:
        reference = reference_of(node.func)
        if reference is not None:
            if self.targets.get(reference) not in _CALLED:
                yield f"the call of @{reference}, which is no loader of weights"
        elif isinstance(node.func, ast.Name | ast.Attribute):
            if isinstance(node.func, ast.Name) and node.func.id in bound:
                yield f"the call of {node.func.id}"
            yield from self._name(node.func, bound, called=True)
        else:
            yield "the call of something that is no listed function"
        for argument in (*node.args, *node.keywords):
            if isinstance(argument, ast.keyword) and argument.arg is None:
                yield "arguments by **"
            yield from self.problems(argument, bound)

    def _constant(self, node: ast.Constant) -> Iterator[str]:
        value = node.value
        if isinstance(value, bytes):
            yield "bytes"
        elif isinstance(value, int) and abs(value) > _MAX_NUMBER:
            yield f"the number {str(value)[:20]}, which is too large"
        elif isinstance(value, str) and "://" in value:
            yield f"the address {value[:60]}"

    def _loop(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, bound: frozenset[str]
    ) -> Iterator[str]:
        inner = bound
        for part in node.generators:
            if part.is_async:
                yield "an asynchronous loop"
            yield from self.problems(part.iter, inner)
            targets = part.target.elts if isinstance(part.target, ast.Tuple) else [part.target]
            if not all(isinstance(target, ast.Name) for target in targets):
                yield "a loop over something else than plain names"
            own = frozenset(target.id for target in targets if isinstance(target, ast.Name))
            yield from self._new_names(own)
            inner = inner | own
            for condition in part.ifs:
                yield from self.problems(condition, inner)
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for result in results:
            yield from self.problems(result, inner)

    def _product(self, node: ast.BinOp, bound: frozenset[str]) -> Iterator[str]:
        for side in (node.left, node.right):
            if isinstance(side, ast.List | ast.Tuple | ast.JoinedStr) or (
                isinstance(side, ast.Constant) and isinstance(side.value, str)
            ):
                yield "the repetition of text or of a list"
            yield from self.problems(side, bound)

    def _new_names(self, names: frozenset[str]) -> Iterator[str]:
        for name in sorted(names):
            if name in self.names or name in _BUILTINS or name.startswith("__"):
                yield f"the name {name} for something else"


def _chain(node: ast.expr) -> tuple[list[str], ast.expr]:
    """Return the attributes of a chain such as ``a.b.c`` and what stands at its root."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return parts[::-1], node


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)
