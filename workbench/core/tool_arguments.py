"""One tool for a language model: its JSON Schema, and the border at which a model's arguments are checked.

Types and names are checked here by pydantic models, ranges and meanings by ``Memory``. Nothing is coerced, and no message
repeats what the model sent but the names of arguments.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from workbench.core.config import Config
from workbench.core.errors import InvalidRequest
from workbench.core.results import one_line

if TYPE_CHECKING:
    from workbench.core.memory import Memory

Properties = dict[str, dict[str, Any]]

_PROBLEMS_SHOWN = 3
_NAME_SHOWN = 64
_EXPECTED = {"string": "a string", "integer": "a whole number", "boolean": "true or false", "array": "a list of strings"}
_GIVEN = {
    bool: "true or false",
    int: "a whole number",
    float: "a number with a decimal point",
    str: "a string",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


class Arguments(BaseModel):
    """The arguments of one operation, of exactly the stated types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    @abstractmethod
    def answer(self, memory: "Memory", session: str) -> dict[str, Any]:
        """Return the operation's JSON."""

    def given(self) -> dict[str, Any]:
        """Return the arguments that the model gave."""
        return self.model_dump(exclude_unset=True)


@dataclass(frozen=True, slots=True)
class Tool:
    """One row of the table of tools.

    ``properties`` makes the JSON Schema of every argument, of all operations together, from the config. ``operations`` has
    the arguments of each operation, the default one first; a tool with a single operation has no argument ``operation``.
    """

    name: str
    description: str
    properties: Callable[[Config], Properties]
    operations: Mapping[str, type[Arguments]]

    def schema(self, config: Config) -> dict[str, Any]:
        """Return the function tool in the form of the OpenAI API, with the bounds that are in force."""
        models = list(self.operations.values())
        required = [name for name, field in models[0].model_fields.items() if field.is_required()] if len(models) == 1 else []
        parameters = {
            "type": "object",
            "properties": self.properties(config),
            "required": required,
            "additionalProperties": False,
        }
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": parameters}}

    def parse(self, arguments: object, config: Config) -> Arguments:
        """Return the checked arguments; an explicit null is an argument left out.

        :param arguments: what a model gave.
        :param config: for the schema.
        :return: the arguments of the operation that they ask for.
        :raises InvalidRequest: naming each argument that is wrong, and the remedy.
        """
        if not isinstance(arguments, Mapping):
            raise InvalidRequest(f"the arguments of {self.name} must be a JSON object, not {_kind(arguments)}.")
        known = self.properties(config)
        given = {name: value for name, value in arguments.items() if value is not None or name not in known}
        operation = self._operation(given)
        model = self.operations[operation]
        problems = [self._stranger(str(name), operation) for name in given if name not in model.model_fields]
        try:
            checked = model.model_validate({name: value for name, value in given.items() if name in model.model_fields})
        except ValidationError as error:
            details = {str(detail["loc"][0]): detail["type"] for detail in error.errors(include_url=False, include_context=False)}
            problems += [_fault(name, kind, operation, given.get(name), known[name]) for name, kind in details.items()]
        if problems:
            raise InvalidRequest(" ".join(problems[:_PROBLEMS_SHOWN]))
        return checked

    def _operation(self, given: dict[str, Any]) -> str:
        default = next(iter(self.operations))
        operation = given.pop("operation", default) if len(self.operations) > 1 else default
        if not isinstance(operation, str) or operation not in self.operations:
            raise InvalidRequest(f"operation is not known; use one of {', '.join(self.operations)}.")
        return operation

    def _stranger(self, name: str, operation: str) -> str:
        """Return the sentences for an argument that the operation does not have."""
        fields = {each: model.model_fields for each, model in self.operations.items()}
        owners, allowed = [each for each in fields if name in fields[each]], ", ".join(fields[operation])
        if owners:
            return f"{name} belongs to {' and '.join(owners)}, not to {operation}; leave it out. {operation} takes {allowed}."
        shown = one_line(name[:_NAME_SHOWN].encode("utf-8", "replace").decode())
        return f"{shown} is no argument of {self.name}; leave it out. {operation} takes {allowed}."


def _fault(name: str, kind: str, operation: str, value: object, schema: Mapping[str, Any]) -> str:
    """Return the sentence for an argument that is missing or of the wrong type."""
    expected = " or ".join(_EXPECTED[each["type"]] for each in schema.get("anyOf", [schema]))
    if kind == "missing":
        return f"{operation} needs {name}; give {expected}."
    return f"{name} must be {expected}, not {_kind(value)}."


def _kind(value: object) -> str:
    """Return what kind of JSON a value is, so that a message need not repeat it."""
    return _GIVEN.get(type(value), "something that is no JSON")
