"""A check against a JSON Schema, of the keywords that options/schema.json uses."""

from __future__ import annotations

from typing import Any

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "number": (int, float)}
NOTES = {
    "description", "default", "deprecationMessage", "doNotSuggest", "enumDescriptions", "$schema", "$comment", "$defs"
}  # fmt: skip


def faults(value: Any, schema: Any, root: dict[str, Any], where: str = "") -> list[str]:
    """The dotted places where `value` breaks `schema`; a keyword that is not known here is a ValueError."""
    found: list[str] = []
    inner = schema.get("properties", {})
    for keyword, rule in schema.items():
        if keyword == "$ref":
            found += faults(value, root["$defs"][rule.removeprefix("#/$defs/")], root, where)
        elif keyword == "properties" and isinstance(value, dict):
            for key in inner.keys() & value.keys():
                found += faults(value[key], inner[key], root, f"{where}.{key}".lstrip("."))
        elif keyword == "additionalProperties" and isinstance(value, dict):
            found += [f"{where}.{key}".lstrip(".") for key in value.keys() - inner.keys() if rule is False]
        elif keyword == "items" and isinstance(value, list):
            found += [fault for item in value for fault in faults(item, rule, root, where)]
        elif keyword == "allOf":
            found += [fault for one in rule for fault in faults(value, one, root, where)]
        elif keyword == "if":
            branch = schema.get("else" if faults(value, rule, root) else "then", {})
            found += faults(value, branch, root, where)
        elif not _holds(value, keyword, rule, root):
            found.append(where)
    return found


def _holds(value: Any, keyword: str, rule: Any, root: dict[str, Any]) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    rules = {
        "type": lambda: any(_is(value, name) for name in ([rule] if isinstance(rule, str) else rule)),
        "enum": lambda: value in rule,
        "const": lambda: value == rule,
        "anyOf": lambda: any(not faults(value, one, root) for one in rule),
        "not": lambda: bool(faults(value, rule, root)),
        "required": lambda: not isinstance(value, dict) or set(rule) <= value.keys(),
        "minimum": lambda: not number or value >= rule,
        "maximum": lambda: not number or value <= rule,
        "exclusiveMinimum": lambda: not number or value > rule,
        "exclusiveMaximum": lambda: not number or value < rule,
        "minLength": lambda: not isinstance(value, str) or len(value) >= rule,
        "minItems": lambda: not isinstance(value, list) or len(value) >= rule,
        "maxItems": lambda: not isinstance(value, list) or len(value) <= rule,
    }
    if keyword in rules:
        return rules[keyword]()
    if keyword in {*NOTES, "properties", "additionalProperties", "items", "then", "else"}:
        return True
    raise ValueError(f"add {keyword} to tests/json_schema.py")


def _is(value: Any, name: str) -> bool:
    if name in ("number", "integer"):
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return isinstance(value, (int, float)) and not isinstance(value, bool) and (name == "number" or whole)
    return isinstance(value, TYPES[name])
