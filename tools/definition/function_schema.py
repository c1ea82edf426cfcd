"""The parameters of a Python function: their JSON Schema, and values checked by it.

pydantic reads the annotations and checks the values; the docstring describes them.
The parameters become one TypedDict, whose fields may have any name.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Annotated, Any, NotRequired, Required, TypeVar

from jsonschema import Draft202012Validator
from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import (
    PydanticSerializationError,
    PydanticUndefined,
    SchemaError,
    core_schema,
    to_json,
    to_jsonable_python,
)
from typing_extensions import TypedDict

from toolcell.core import ConfigError
from toolcell.core.text.canonical_json import canonical_json

from .signature import (
    name_of,
    open_parameters,
    resolve_annotations,
    union_members,
    unresolved,
    wants_context,
)
from .validation import (
    Arguments,
    Problem,
    argument_bytes,
    path_of,
    pydantic_problems,
    refusal,
)

_OBJECTS = frozenset(["model", "dataclass", "typed-dict", "definition-ref", "dict"])
_PLAIN_TYPES = (int, str, bool, type(None))
_EXACTLY = "one of the allowed values in its own type"
_make_typed_dict: Any = TypedDict


class _Generator(GenerateJsonSchema):
    """JSON Schema as pydantic writes it, without titles that repeat names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        return {"type": "string", "contentEncoding": "base64"}

    def set_schema(self, schema: core_schema.SetSchema) -> JsonSchemaValue:
        _refuse_objects_in(schema)
        return super().set_schema(schema)

    def frozenset_schema(self, schema: core_schema.FrozenSetSchema) -> JsonSchemaValue:
        _refuse_objects_in(schema)
        return super().frozenset_schema(schema)

    def generator_schema(self, schema: core_schema.GeneratorSchema) -> JsonSchemaValue:
        raise ConfigError(
            "an iterator is used up by the first look at a call",
            hint="take a list or a Sequence",
        )

    def model_field_schema(self, schema: core_schema.ModelField) -> JsonSchemaValue:
        _refuse_excluded(schema)
        _refuse_two_names(schema)
        return super().model_field_schema(schema)

    def dataclass_field_schema(
        self, schema: core_schema.DataclassField
    ) -> JsonSchemaValue:
        _refuse_excluded(schema)
        _refuse_two_names(schema)
        return super().dataclass_field_schema(schema)

    def typed_dict_field_schema(
        self, schema: core_schema.TypedDictField
    ) -> JsonSchemaValue:
        _refuse_excluded(schema)
        _refuse_two_names(schema)
        return super().typed_dict_field_schema(schema)

    def emit_warning(self, kind: Any, detail: str) -> None:
        raise ConfigError(
            f"a default is not a JSON value: {detail}",
            hint="use one of None, bool, int, float, str, list and dict",
        )


class _StrictGenerator(_Generator):
    """Nested objects refuse unknown keys too, as the values are checked."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _closed(super().typed_dict_schema(schema))


def _closed(schema: JsonSchemaValue) -> JsonSchemaValue:
    if "properties" in schema:
        schema["additionalProperties"] = False
    return schema


def _refuse_objects_in(
    schema: core_schema.SetSchema | core_schema.FrozenSetSchema,
) -> None:
    # Their order differs after a restart, so they have no canonical form.
    if schema.get("items_schema", {}).get("type") in _OBJECTS:
        raise ConfigError("a set of objects has no JSON form", hint="take a list")


def _refuse_excluded(schema: Mapping[str, Any]) -> None:
    # Two different calls would look the same to a guard and to a store of results.
    if any(key.startswith("serialization_exclude") for key in schema):
        raise ConfigError("a field is excluded from JSON", hint="drop `exclude`")


def _refuse_two_names(schema: Mapping[str, Any]) -> None:
    # A rule is written with the name in the schema, and looks at the one in the JSON.
    read, written = schema.get("validation_alias"), schema.get("serialization_alias")
    if isinstance(read, list):
        choices = read if isinstance(read[0], list) else [read]
        first = choices[0]
        read = first[0] if len(first) == 1 else first
    if read != written:
        raise ConfigError(
            "a field is read and written under two names", hint="give it one `alias`"
        )


class FunctionSchema:
    """Calls a function with JSON: its schema, and the values that the schema allows.

    Args:
        function: Anything callable.
        described: Descriptions by parameter name, from its docstring.
        strict: Whether values have to be of the declared type, and keys known.
        namespace: Names that annotations may use besides the function's own.

    Attributes:
        parameters: The JSON Schema of the arguments, draft 2020-12.
        hints: The type of each parameter.
        contexts: The parameters that take a `ToolContext`.
        positional: The parameters that cannot be given by name.

    Raises:
        ConfigError: An annotation cannot be resolved, or has no JSON Schema.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        described: Mapping[str, str],
        strict: bool = True,
        namespace: Mapping[str, Any] | None = None,
    ) -> None:
        self._strict = strict
        name = name_of(function)
        parameters = open_parameters(function)
        hints = resolve_annotations(function, parameters, namespace or {})
        self.hints = hints
        self.contexts = tuple(key for key in hints if wants_context(hints[key]))
        self.positional = tuple(
            parameter.name
            for parameter in parameters
            if parameter.kind is Parameter.POSITIONAL_ONLY
        )
        fields = {
            parameter.name: _field(
                parameter, hints[parameter.name], described.get(parameter.name)
            )
            for parameter in parameters
            if parameter.name not in self.contexts
        }
        text = self._build(name, fields)
        if '"writeOnly":true' in text:
            raise ConfigError(
                f"{name} takes a secret from the model",
                hint="read secrets with ToolContext.get_config",
            )
        if _is_twice_base64(self.parameters):
            raise ConfigError(
                f"{name} takes base64 of base64",
                hint="annotate with `bytes`, which is written as base64",
            )
        self._has_sets = '"uniqueItems":true' in text
        self._has_bytes = '"contentEncoding":"base64"' in text
        self._plain = _is_plain(self._adapter.core_schema)
        # For pydantic 1 is true where only certain values are allowed.
        confusing = strict and _allows_0_or_1(self.parameters)
        self._exact = Draft202012Validator(self.parameters) if confusing else None
        self._refuse_odd_defaults(name, fields)

    def _build(self, name: str, fields: dict[str, Any]) -> str:
        """Set the schema and the validator; return the schema as text."""
        closed = _make_typed_dict("Arguments", fields)
        closed.__pydantic_config__ = ConfigDict(
            extra="forbid" if self._strict else "ignore", val_json_bytes="base64"
        )
        try:
            self._adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(closed)
            # A name that a nested model lacks is reported here, and only here.
            self._adapter.rebuild(raise_errors=True)
            self._validator = self._adapter.validator
            self.parameters = self._json_schema()
            text = canonical_json(self.parameters).decode()
        except PydanticUndefinedAnnotation as error:
            raise unresolved(name, error.name) from None
        except PydanticUserError as error:
            reason = error.message.partition("\n")[0]
            raise ConfigError(
                f"{name} has a parameter without a JSON Schema: {reason}",
                hint="annotate it with a type that JSON can carry",
            ) from None
        except SchemaError as error:
            raise ConfigError(
                f"{name} has a parameter that pydantic cannot check: {_reason(error)}",
                hint="a pattern has no look-around, and ends with `$`, not with \\Z",
            ) from None
        except (TypeError, ValueError):
            raise ConfigError(
                f"a default of {name} is not a JSON value",
                hint="use one of None, bool, int, float, str, list and dict",
            ) from None
        return text

    def _json_schema(self) -> dict[str, Any]:
        generator = _StrictGenerator if self._strict else _Generator
        schema = self._adapter.json_schema(schema_generator=generator)
        schema.pop("title", None)
        schema.setdefault("properties", {})
        return schema

    def _refuse_odd_defaults(self, name: str, fields: Mapping[str, Any]) -> None:
        """Refuse defaults that a caller could not have given."""
        infos = {
            key: FieldInfo.from_annotation(typing.get_args(field)[0])
            for key, field in fields.items()
        }
        defaults = {
            key: info.default
            for key, info in infos.items()
            if info.default is not PydanticUndefined
        }
        bad: list[str] = []
        try:
            self._adapter.validate_json(to_json(self.dump(defaults)), strict=True)
        except ValidationError as error:
            bad += [
                str(item["loc"][0])
                for item in error.errors(include_url=False, include_input=False)
                if item["loc"][0] in self.parameters["properties"]
                and not (item["type"] == "missing" and len(item["loc"]) == 1)
            ]
        except (PydanticSerializationError, ValueError):
            bad += sorted(defaults)
        if bad:
            raise ConfigError(
                f"the default of {' or '.join(bad)} in {name} does not fit its type",
                hint="for no value, annotate `T | None` and default to None",
            )

    def validate(self, tool: str, arguments: Mapping[str, Any]) -> Arguments:
        """Return the arguments as Python values, defaults filled in.

        Raises:
            ToolValidationError: They do not fit.
        """
        data = argument_bytes(tool, arguments)
        try:
            if self._strict:
                values = self._validator.validate_json(
                    data, strict=True, extra="forbid"
                )
            else:
                values = self._validator.validate_json(data)
        except ValidationError as error:
            names = self.parameters["properties"]
            problems = pydantic_problems(error, arguments, names)
            raise refusal(tool, problems) from None
        if self._exact is not None and not self._exact.is_valid(arguments):
            raise refusal(
                tool,
                [
                    Problem(path_of(list(error.absolute_path)), "type", _EXACTLY)
                    for error in self._exact.iter_errors(arguments)
                ],
            )
        return Arguments(values, self.dump)

    def dump(self, values: dict[str, Any]) -> dict[str, JsonValue]:
        """Return values as canonical JSON: equal values give equal JSON."""
        if self._plain:
            return values.copy()
        serializer = self._adapter.serializer
        if not (self._has_sets or self._has_bytes):
            dumped = serializer.to_python(
                values, mode="json", by_alias=True, round_trip=True, warnings=False
            )
        else:
            plain = serializer.to_python(
                values, by_alias=True, round_trip=True, warnings=False
            )
            dumped = to_jsonable_python(_ordered(plain), bytes_mode="base64")
        return typing.cast("dict[str, JsonValue]", dumped)


def _reason(error: SchemaError) -> str:
    """Return the last line of an error of several, which has the reason."""
    return str(error).strip().splitlines()[-1].strip()


def _is_plain(schema: Mapping[str, Any]) -> bool:
    """Tell whether all values are their own JSON, under their own names."""
    fields = schema.get("fields", {}).values()
    return schema["type"] == "typed-dict" and all(map(_is_plain_field, fields))


def _is_plain_field(field: Mapping[str, Any]) -> bool:
    if any(key.startswith("serialization") for key in field):
        return False
    kind, inner = field["type"], field.get("schema")
    if kind == "default" and type(field.get("default")) not in _PLAIN_TYPES:
        return False
    if kind in ("typed-dict-field", "default", "nullable") and inner is not None:
        return _is_plain_field(inner)
    return kind in ("int", "str", "bool", "none")


def _allows_0_or_1(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_allows_0_or_1, schema))
    if not isinstance(schema, dict):
        return False
    allowed = [schema.get("const"), *(schema.get("enum") or ())]
    if any(isinstance(each, int) and each in (0, 1) for each in allowed):
        return True
    return any(map(_allows_0_or_1, schema.values()))


def _is_twice_base64(schema: Any) -> bool:
    """Tell whether a type such as `Base64Bytes` decodes what was decoded before it."""
    if isinstance(schema, list):
        return any(map(_is_twice_base64, schema))
    if not isinstance(schema, dict):
        return False
    twice = str(schema.get("format", "")).startswith("base64")
    if twice and "contentEncoding" in schema:
        return True
    return any(map(_is_twice_base64, schema.values()))


def _ordered(value: Any) -> Any:
    """Return a value whose sets are sorted lists: their own order is chance."""
    if isinstance(value, dict):
        return {key: _ordered(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_ordered(item) for item in value]
    if isinstance(value, set | frozenset):
        items = [
            to_jsonable_python(_ordered(item), bytes_mode="base64") for item in value
        ]
        return sorted(items, key=canonical_json)
    return value


class _Unlike:
    """Metadata without a hash, so that `typing` makes the annotation anew.

    Otherwise `typing` returns an equal annotation that it made before: `int | str` for
    `str | int`.
    """

    __hash__ = None  # type: ignore[assignment]


def _field(parameter: Parameter, annotation: Any, described: str | None) -> Any:
    """Return the TypedDict field of a parameter."""
    default = parameter.default
    if default is None and not _takes_none(annotation):
        annotation = annotation | None
    if described and not _has_description(annotation, default):
        annotation = Annotated[annotation, Field(description=described)]
    if default is Parameter.empty:
        info = FieldInfo.from_annotation(annotation)
        if typing.get_args(annotation):
            annotation = Annotated[annotation, _Unlike()]
        return (Required if info.is_required() else NotRequired)[annotation]
    if not isinstance(default, FieldInfo):
        return NotRequired[Annotated[annotation, Field(default=default)]]
    wrapper = Required if default.is_required() else NotRequired
    return wrapper[Annotated[annotation, default]]


def _takes_none(annotation: Any) -> bool:
    if typing.get_origin(annotation) is Annotated:
        return _takes_none(typing.get_args(annotation)[0])
    if annotation in (Any, None, object) or isinstance(annotation, TypeVar):
        return True
    return any(_takes_none(member) for member in union_members(annotation)) or (
        annotation is type(None)
    )


def _has_description(annotation: Any, default: Any) -> bool:
    metadata = [default]
    if typing.get_origin(annotation) is Annotated:
        metadata += annotation.__metadata__
    return any(isinstance(each, FieldInfo) and each.description for each in metadata)
