"""Strict YAML 1.2: line and column of every key, no duplicates, no surprises, bounded size.

PyYAML's safe loader follows YAML 1.1: it reads `1e-6` as text, `no` as false and `1:30` as ninety. It also silently
keeps the last of two equal keys, and does not record where a key was.
"""

import re
from typing import Any

import yaml

from unmdpo.core.errors import UserError

Path = tuple[str | int, ...]
MAX_NODES, MAX_DEPTH = 20_000, 50  # far beyond any recipe; limits exploding aliases
PLAIN_TAGS = {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}


class _Loader(yaml.SafeLoader):
    pass


_FLOAT = r"""^(?: [-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+
               | [-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)
               | [-+]?\.(?:inf|Inf|INF)
               | \.(?:nan|NaN|NAN))$"""
_INT = r"^(?: [-+]?[0-9]+ | 0o[0-7]+ | 0x[0-9a-fA-F]+)$"
_BOOL = r"^(?: true|True|TRUE|false|False|FALSE)$"
_REPLACED = tuple(f":{kind}" for kind in ("timestamp", "float", "int", "bool"))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(_REPLACED)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _pattern, _first in (
    ("bool", _BOOL, "tTfF"),
    ("int", _INT, "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern, re.X), list(_first))


def _integer(_: _Loader, node: yaml.ScalarNode) -> int:
    """`010` is ten; octal is written `0o10`."""
    base = {"0o": 8, "0x": 16}.get(node.value[:2], 10)
    return int(node.value if base == 10 else node.value[2:], base)


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


class Document:
    """Plain data, with line and column of every key in it."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.places: dict[Path, str] = {}  # line:column
        self._nodes = 0
        try:
            self._loader = _Loader(text)
            node = self._loader.get_single_node()
            self.data: Any = None if node is None else self._build(node, ())
        except yaml.YAMLError as error:
            raise UserError(f"{name}{_where(error)}: {_what(error)}") from error
        except RecursionError as error:
            raise UserError(f"{name}: not valid YAML: nested too deeply") from error
        except (OverflowError, ValueError) as error:  # the parser's own, for "\\UFFFFFFFF"
            raise UserError(f"{name}: not valid YAML: it names a character that does not exist") from error

    def _build(self, node: yaml.Node, path: Path) -> Any:
        self._nodes += 1
        self.places.setdefault(path, _place(node))
        if self._nodes > MAX_NODES or len(path) > MAX_DEPTH:
            raise self._error(node, "the document is too large or too deep")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if node.tag not in PLAIN_TAGS:
            raise self._error(node, f"the tag {node.tag} is not allowed")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        return [self._build(item, (*path, i)) for i, item in enumerate(node.value)]

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        self._check_text(node)
        try:
            return self._loader.construct_object(node)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            kind = node.tag.rpartition(":")[2]
            raise self._error(node, f"'{node.value[:40]}' is not a readable {kind}") from error

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        own = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for i, key in enumerate(own):
            if any(key.value == earlier.value for earlier in own[:i]):
                raise self._error(key, f"the key '{key.value}' appears twice in one mapping")
        self._loader.flatten_mapping(node)  # puts `<<` merges first, so a mapping's own keys win
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "a key should be a plain name")
            self._check_text(key)
            self.places[(*path, key.value)] = _place(key)
            mapping[key.value] = self._build(value, (*path, key.value))
        return mapping

    def _check_text(self, node: yaml.ScalarNode) -> None:
        """Refuses lone surrogates, which escapes can spell but no file can contain."""
        if any("\ud800" <= character <= "\udfff" for character in node.value):
            raise self._error(node, "half of a surrogate pair is not a character; write the character itself")

    def _error(self, node: yaml.Node, problem: str) -> UserError:
        return UserError(f"{self.name}:{_place(node)}: {problem}")


def _place(node: yaml.Node) -> str:
    return f"{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""


def _what(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or str(error)
    return f"not valid YAML: {problem}"
