# SPDX-License-Identifier: Apache-2.0
"""Look for code in the configs of a bundle. Nothing is executed: expressions are parsed, names are looked up in lists.

A config can run code in more ways than ``$`` and ``_target_``: macros bring in other files, some arguments import a
class by its name, others say where files are written. Each has its rule here; every refusal names file and key.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser

from vmfseg.utils import VmfError

from .documents import entries
from .expressions import (
    DEFAULT_NAMES,
    broken_expression,
    expression_problem,
    imported_names,
    is_import,
    parse_expression,
    reference_of,
)
from .targets import (
    FUNCTIONS,
    LITERAL_ARGUMENTS,
    NAME_ARGUMENTS,
    REFUSED_ARGUMENTS,
    WRITE_ARGUMENTS,
    missing_target,
    target_problem,
)

__all__ = ["code_findings"]

_KEY = re.compile(r"[\w .,/+:#&()-]{0,200}")
_FILE_PART = re.compile(r"(?!.*\.\.)[\w .{}*=-]*")
_ROOTS = ("bundle_root", "output_dir", "ckpt_dir")
_FIND_ROOT = "vmfseg.bundle.find_root"
_OWN_FIX = "do not run it unless you know who wrote it; --trust runs it all the same"


def code_findings(root: Path, configs: Mapping[str, Mapping[str, Any]]) -> list[VmfError]:
    """Return what in the configs of a bundle could run code, import, write elsewhere or ask the network.

    Args:
        root: folder of the bundle.
        configs: content by file name, ``metadata.json`` among them.

    Returns:
        VMF410 for what is refused, VMF312 for a ``_target_`` that does not exist, VMF314 for an expression that is no
        Python; empty for a harmless bundle.

    Example:
        >>> found = code_findings(Path("b"), {"train.json": {"run": ["$1 + 1", {"_target_": "os.system"}]}})
        >>> [(finding.code, finding.subject) for finding in found]
        [('VMF410', 'configs/train.json: run::1::_target_')]
    """
    return list(_Walk(root, configs).findings())


class _Walk:
    """One look at all configs of a bundle."""

    def __init__(self, root: Path, configs: Mapping[str, Mapping[str, Any]]) -> None:
        self.root, self.configs = root, configs
        self.names: dict[str, str] = dict(DEFAULT_NAMES)
        self.defined: dict[str, list[Any]] = {}  # an id may be defined in several files
        self.targets: dict[str, str] = {}
        self.name = configs.get("metadata.json", {}).get("bundle")

    def findings(self) -> Iterator[VmfError]:
        yield from self._collect()
        for file, config in self.configs.items():
            check = self._metadata if Path(file).stem == "metadata" else self._entry
            for place, value, parent in _with_parents(config):
                for finding in check(place, value, parent):
                    finding.subject = f"configs/{file}: {place}"
                    yield VmfError(**finding.as_dict())

    def _collect(self) -> Iterator[VmfError]:
        """Learn what the imports bind and what every id stands for."""
        for file, config in self.configs.items():
            for place, value in entries(config):
                name = _plain_id(place)
                self.defined.setdefault(name, []).append(value)
                if name.endswith("::_target_") and isinstance(value, str):
                    whole = name.removesuffix("::_target_")
                    self.targets[whole] = value if self.targets.get(whole, value) == value else ""
                if is_import(value):
                    try:
                        bound = imported_names(value)
                    except (ValueError, SyntaxError) as error:
                        yield _refuse(str(error), value, f"configs/{file}: {place}")
                        continue
                    for word, path in bound.items():
                        if self.names.setdefault(word, path) != path:
                            yield _refuse(f"the name {word} stands for two modules", value, f"configs/{file}: {place}")

    def _metadata(self, place: str, value: Any, parent: Any) -> Iterator[VmfError]:
        del parent
        if place.rsplit("::", 1)[-1] == "_target_" or (isinstance(value, str) and value.startswith(("$", "%", "@"))):
            yield _refuse("metadata must be plain values; MONAI would evaluate this", value)

    def _entry(self, place: str, value: Any, parent: Any) -> Iterator[VmfError]:
        whole = _plain_id(place)
        key, inside = whole.rsplit("::", 1)[-1], "::" in whole
        if not _KEY.fullmatch(place.rsplit("::", 1)[-1]):
            yield _refuse("a key must be a plain word", key)
        if key == "_target_":
            yield from self._target(value)
        elif key == "_mode_":
            target = parent.get("_target_") if isinstance(parent, Mapping) else None
            if value != "default" and not (value == "callable" and target in FUNCTIONS):
                yield _refuse("_mode_ must be default, or callable for a listed function", value)
        elif key in REFUSED_ARGUMENTS:
            if value is not (key == "weights_only") and value is not None:
                yield _refuse(f"{key} turns on pickles, downloads or a debugger", value)
        elif key in LITERAL_ARGUMENTS:
            yield from self._literal(key, value)
        elif (key in WRITE_ARGUMENTS and inside) or (whole in _ROOTS):
            if not self._below_bundle(value, whole == "bundle_root"):
                yield _refuse("files must be written below bundle_root, output_dir or ckpt_dir", value)
        elif key in NAME_ARGUMENTS and inside:
            if not all(_FILE_PART.fullmatch(text) for text in self._texts_of(value)):
                yield _refuse(f"{key} must be a plain part of a file's name", value)
        elif (key == "seed" or "phantom" in whole.split("::")[:-1]) and self._is_free_text(value):
            yield _refuse("the folder of the phantom is named by this, so it must be a number", value)
        if isinstance(value, str) and key != "_target_":
            yield from self._text(key, value)

    def _target(self, value: Any) -> Iterator[VmfError]:
        if not isinstance(value, str) or value.startswith(("@", "$", "%")):
            yield _refuse("_target_ must be a plain name", value)
            return
        missing = missing_target(value)
        if missing is not None:
            yield missing
        elif target_problem(value):
            yield _refuse(f"_target_ is {target_problem(value)}", value)

    def _literal(self, key: str, value: Any) -> Iterator[VmfError]:
        words = value if isinstance(value, list) else [value]
        for word in words:
            if isinstance(word, str) and word not in LITERAL_ARGUMENTS[key]:
                allowed = ", ".join(sorted(LITERAL_ARGUMENTS[key]))
                yield _refuse(f"{key} imports what it names; allowed are {allowed}", word)

    def _text(self, key: str, value: str) -> Iterator[VmfError]:
        if value.startswith(("$", "@", "%")) and re.search(r"[@%](#|::)", value):
            yield _refuse("references must be written in full, not relative to their place", value)
        elif value.startswith("$") and not is_import(value):
            broken = broken_expression(value)
            if broken is not None:
                yield broken
                return
            problem = expression_problem(value, self.names, self.targets) or self._written(parse_expression(value))
            if problem:
                yield _refuse(f"the expression must not have {problem}", value)
        elif value.startswith("%"):
            yield from self._macro(value)
        elif "://" in value and key != "_desc_":
            yield _refuse("a config must not ask the network", value)

    def _macro(self, value: str) -> Iterator[VmfError]:
        path, _ = ConfigParser.split_path_id(value[1:])
        # MONAI looks for the file from the current folder, so only from the right one it is the bundle's own
        own = self.root.resolve() / "configs"
        if path and not (Path(path).resolve().parent == own and Path(path).name in self.configs):
            yield _refuse("a macro must not bring in another file than the bundle's own, as seen from here", value)

    def _written(self, tree: ast.Expression) -> str:
        """Return a problem if a method that writes is told to write elsewhere."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "run":
                for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                    switch = isinstance(argument, ast.Constant) and not isinstance(argument.value, str)
                    if not switch and not self._node_below(argument, ()):
                        return "a folder for run() that is not below bundle_root, output_dir or ckpt_dir"
        return ""

    def _is_free_text(self, value: Any) -> bool:
        """Whether a value could be a text; an expression without quotes can only compute numbers of numbers."""
        return any(not text.startswith("$") or set(text) & set("\"'") for text in self._texts_of(value))

    def _texts_of(self, value: Any, seen: tuple[str, ...] = ()) -> list[str]:
        """Return the texts that a value can stand for, in whichever file; expressions stay as they are."""
        if not isinstance(value, str):
            return []
        name = _plain_id(value[1:])
        if not value.startswith("@") or name in seen:
            return [value]
        return [text for found in self.defined.get(name, []) for text in self._texts_of(found, (*seen, name))]

    def _below_bundle(self, value: Any, is_root: bool = False, seen: tuple[str, ...] = ()) -> bool:
        """Whether a path lies below the bundle's own folders, whatever the values of a run are."""
        if value is None or isinstance(value, bool):
            return True
        if not isinstance(value, str):
            return False
        if is_root and value == ".":  # vmfseg train says where it is
            return True
        if not value.startswith(("@", "$")):
            return False
        try:
            tree = parse_expression(value if value[0] == "$" else f"${value}")
        except SyntaxError:
            return True  # reported where expressions are looked at
        return self._node_below(tree.body, seen)

    def _node_below(self, node: ast.expr, seen: tuple[str, ...]) -> bool:
        name = reference_of(node)
        if name is not None:
            values = self.defined.get(name, [])
            if name in seen:
                return False
            if not values:
                return True  # a reference to nothing is reported as such
            return all(self._below_bundle(value, name == "bundle_root", (*seen, name)) for value in values)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._node_below(node.left, seen) and _is_below(node.right)
        if isinstance(node, ast.Call):
            path = ast.unparse(node.func)
            if path == _FIND_ROOT:
                return [argument.value for argument in node.args if isinstance(argument, ast.Constant)] == [self.name]
            if path in ("os.path.join", "pathlib.Path") and node.args and not node.keywords:
                return self._node_below(node.args[0], seen) and all(map(_is_part, node.args[1:]))
        return False


def _with_parents(config: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    found: dict[str, Any] = {"": config}
    for place, value in entries(config):
        key_of = place.rsplit("::", 1)[0] if "::" in place else ""
        yield place, value, found.get(key_of, config)
        found[place] = value


def _is_below(node: ast.expr) -> bool:
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and text.startswith("/") and ".." not in Path(text).parts


def _is_part(node: ast.expr) -> bool:
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and not text.startswith(("/", "\\", "~")) and ".." not in Path(text).parts


def _plain_id(place: str) -> str:
    return "::".join(part.lstrip("+") for part in place.replace("#", "::").split("::"))


def _refuse(rule: str, found: Any, subject: str = "") -> VmfError:
    text = found if isinstance(found, str) else repr(found)
    return VmfError("VMF410", subject=subject, rule=rule, found=text[:120], fix=_OWN_FIX)
