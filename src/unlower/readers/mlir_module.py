"""A module of the MLIR bindings -> `unlower.ir`.

One pass over what the entry can reach. Every MLIR type and attribute is uniqued in its context, so each is decoded once
and found again by object; locations are read through `NameLoc.name_str`, a hundred times cheaper than their text.
Nothing of MLIR stays referenced from the result.
"""

import gc
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from unlower._jax_compat import mlir_ir as ir
from unlower.errors import FormatError, InvalidModuleError
from unlower.ir.attributes import IntArray, Symbol, Unparsed
from unlower.ir.module import Function, Location, Module, Op, Region, Value
from unlower.ir.types import TensorType, Type
from unlower.readers.constants import dense_from_attribute, dense_from_blob, dense_from_text, resources_from_text
from unlower.readers.elision import ELIDED_TARGET, Elision
from unlower.readers.hlo.carried import CARRIED_TARGET
from unlower.readers.mlir_attributes import parse_structured, plain_decoders
from unlower.readers.mlir_types import parse_type

__all__ = ["module_from_mlir"]

_TERMINATORS = frozenset(["func.return", "mhlo.return", "sdy.return", "stablehlo.return", "vhlo.return_v1"])
_NO_ATTRIBUTES: Mapping[str, Any] = MappingProxyType({})


def module_from_mlir(module: Any, elision: Elision | None = None, *, careful: bool = False) -> Module:
    """Builds the IR of an MLIR module.

    Functions that the entry cannot reach are left out: XLA's converter emits the body of every region once more as a
    private function, a quarter to nearly all of a module's functions.

    Args:
      module: a module of the bindings; only read, and not referenced afterwards.
      elision: decides about constants without values, and is to be finished by the caller. None: they are refused.
      careful: the module may hold names that are not UTF-8; the bindings end the process when asked for one, so
        locations are left out.

    Raises:
      InvalidModuleError: no entry function, or control flow between blocks.
      FormatError: constant data that is left out, or does not fit its type; names that are not UTF-8.
    """
    # The many small objects made here would start the collector again and again, for nothing: none is garbage.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with module.context:
            asked = Elision() if elision is None else elision
            builder = _Builder(module, asked, careful)
            try:
                built = builder.build()
            except RuntimeError as error:
                # What the bindings raise for a string that Python cannot hold.
                if "conversion error" not in str(error):
                    raise
                raise FormatError(
                    "a name in the module is not UTF-8", mend="the file is damaged; copy or write it again"
                ) from None
            finally:
                builder.close()
        if elision is None:
            asked.finish()
        return built
    finally:
        if collecting:
            gc.enable()


class _Draft:
    """An `Op` that is being filled in, and becomes one by its class: a third of the cost of a frozen dataclass."""

    __slots__ = Op.__slots__

    def __init__(self, name: Any, operands: Any, results: Any, attributes: Any, regions: Any, location: Any):
        self.name = name
        self.operands = operands
        self.results = results
        self.attributes = attributes
        self.regions = regions
        self.location = location


class _Builder:
    """The state of one pass: what was decoded already, and which functions are still to be read."""

    def __init__(self, module: Any, elision: Elision, careful: bool):
        self._module: Any = module
        self._elision = elision
        self._types: dict[Any, Type] = {}
        self._interned: dict[Any, Any] = {}
        self._attributes: dict[Any, Any] = {}
        self._locations: dict[Any, Location | None] = {}
        self._places: dict[Any, Location] = {}
        self._symbols: list[str] = []
        self._number = 0
        self._resources: dict[str, bytes] | None = None
        self._decoders = plain_decoders(self._attribute, self._type, careful)
        self._decoders[ir.FlatSymbolRefAttr] = self._symbol
        if careful:
            self._location = lambda location: None
        for name in ("DenseIntElementsAttr", "DenseFPElementsAttr", "DenseElementsAttr"):
            self._decoders[getattr(ir, name)] = self._dense

    def build(self) -> Module:
        functions: dict[str, Any] = {}
        public: list[str] = []
        meshes: dict[str, Any] = {}
        for op in self._module.body.operations:
            op = op.operation
            if op.name == "func.func":
                attributes = op.attributes
                name = attributes["sym_name"].value
                functions[name] = op
                if "sym_visibility" not in attributes or attributes["sym_visibility"].value == "public":
                    public.append(name)
            elif op.name == "sdy.mesh":
                meshes[op.attributes["sym_name"].value] = self._attribute(op.attributes["mesh"])
            else:
                raise InvalidModuleError(
                    f"{op.name} at the top of a module", mend="only functions and meshes belong there"
                )
        if not public:
            raise InvalidModuleError(
                "the module has no public function", mend="mark the function to call `public`, or drop `private`"
            )
        entry = "main" if "main" in public else public[0]
        built: dict[str, Function] = {}
        waiting = [entry]
        while waiting:
            name = waiting.pop()
            if name in built or name not in functions:
                continue
            built[name] = self._function(name, functions[name])
            # Attributes are decoded once, and only while a function is read: these are the functions it refers to.
            waiting.extend(reversed(self._symbols))
            self._symbols.clear()
        operation = self._module.operation
        attributes = self._attribute_dict(operation)
        name = attributes.pop("sym_name", "module")
        if meshes:
            attributes["sdy.meshes"] = meshes
        return Module(str(name), built, entry, attributes)

    def close(self) -> None:
        """Lets go of every MLIR object: the decoders refer to the builder, and a cycle would keep the context alive."""
        self._module = None
        self._types.clear()
        self._attributes.clear()
        self._locations.clear()

    # --- types, attributes, locations

    def _type(self, type_: Any) -> Type:
        try:
            return self._types[type_]
        except KeyError:
            parsed = parse_type(str(type_))
            parsed = self._types[type_] = self._interned.setdefault(parsed, parsed)
            return parsed

    def _attribute(self, attribute: Any) -> Any:
        value = self._attributes.get(attribute)
        if value is None:
            decoder = self._decoders.get(type(attribute))
            value = self._other(attribute) if decoder is None else decoder(attribute)
            self._attributes[attribute] = value
        return value

    def _symbol(self, attribute: Any) -> Symbol:
        self._symbols.append(attribute.value)
        return Symbol(attribute.value)

    def _dense(self, attribute: Any) -> Any:
        type_ = self._type(attribute.type)
        if isinstance(type_, TensorType):
            return dense_from_attribute(attribute, type_)
        if str(attribute.type).endswith("xindex>") or str(attribute.type) == "tensor<index>":
            values = np.asarray(attribute)
            if values.ndim == 1:  # layouts
                return IntArray(values.tolist(), "index")
        return Unparsed(str(attribute))

    def _other(self, attribute: Any) -> Any:
        text = str(attribute)
        if text.startswith("dense_resource<"):
            return self._resource(text)
        return parse_structured(text)

    def _resource(self, text: str) -> Any:
        name, _, type_text = text[len("dense_resource<") :].partition("> : ")
        name = name.strip('"')
        type_ = parse_type(type_text)
        if not isinstance(type_, TensorType):
            return Unparsed(text)
        if self._resources is None:
            self._resources = resources_from_text(str(self._module))
        blob = self._resources.get(name)
        if blob is None:
            return self._elision.fill(name, type_)
        return dense_from_blob(blob, type_, name)

    def _attribute_dict(self, op: Any) -> dict[str, Any]:
        attributes = op.attributes
        decoded = {}
        for name in attributes:
            try:
                attribute = attributes[name]
            except TypeError:
                # Complex constants: the bindings have no class for them and refuse to hand the attribute out.
                decoded[name] = self._hidden_attribute(op, name)
                continue
            decoded[name] = self._attribute(attribute)
        return decoded

    def _hidden_attribute(self, op: Any, name: str) -> Any:
        text = op.get_asm(print_generic_op_form=True, use_local_scope=True, skip_regions=True)
        return _attribute_from_text(text, name)

    def _location(self, location: Any) -> Location | None:
        kind = type(location)
        if kind is ir.FileLineColLoc and location.filename == "-":
            # MLIR's own: the place in the text that was read. Each is met once, so no look-up.
            return Location(None, "<text>", location.start_line)
        key = location.attr  # uniqued, which locations are not
        try:
            return self._locations[key]
        except KeyError:
            place = self._locations[key] = self._read_location(location)
            return place

    def _read_location(self, location: Any) -> Location | None:
        """Reads the name, and the line of the innermost frame."""
        name = None
        if type(location) is ir.NameLoc:
            name = location.name_str
            location = location.child_loc
        while type(location) is ir.CallSiteLoc:
            location = location.callee
        if type(location) is ir.NameLoc:
            # Python frames: `"function"("file":line)`.
            location = location.child_loc
        if type(location) is not ir.FileLineColLoc:
            place = (name, None, None)
        elif location.filename == "-":
            place = (name, "<text>", location.start_line)
        else:
            place = (name, location.filename, location.start_line)
        return None if place == (None, None, None) else self._places.setdefault(place, Location(*place))

    # --- functions

    def _function(self, name: str, op: Any) -> Function:
        attributes = self._attribute_dict(op)
        blocks = list(op.regions[0].blocks)
        if not blocks:
            raise InvalidModuleError(f"@{name} is declared but not defined", mend="link its definition into the module")
        self._number = 0
        body = self._region(op.regions[0], {}, name)
        inputs, outputs = len(body.arguments), len(body.results)
        visibility = attributes.pop("sym_visibility", "public")
        argument_attributes = attributes.pop("arg_attrs", ()) or ({},) * inputs
        result_attributes = attributes.pop("res_attrs", ()) or ({},) * outputs
        for key in ("sym_name", "function_type"):
            attributes.pop(key, None)
        locations = tuple([self._location(a.location) if hasattr(a, "location") else None for a in blocks[0].arguments])
        return Function(name, body, visibility, argument_attributes, result_attributes, locations, attributes)

    def _region(self, region: Any, values: dict[Any, Value], function: str) -> Region:
        blocks = list(region.blocks)
        if not blocks:
            return Region((), (), ())
        if len(blocks) > 1:
            raise InvalidModuleError(
                f"a region with {len(blocks)} blocks in @{function}",
                mend="use the structured control flow of StableHLO (while, if, case)",
            )
        # This loop is what reading costs: bound names, no calls where a look-up does.
        type_of, known = self._types.get, self._attributes.get
        read_type, read_attribute, locate, inner = self._type, self._attribute, self._location, self._region
        number = self._number
        arguments: list[Value] = []
        ops: list[Any] = []
        results: tuple[Value, ...] = ()
        for argument in blocks[0].arguments:
            type_ = argument.type
            values[argument] = value = Value(number, type_of(type_) or read_type(type_))
            arguments.append(value)
            number += 1
        for op in blocks[0].operations:
            op = op.operation
            name = op.name
            operands = tuple([values[operand] for operand in op.operands])
            if name in _TERMINATORS:
                results = operands
                continue
            attributes: Any = _NO_ATTRIBUTES
            mlir_attributes = op.attributes
            for key in mlir_attributes:
                if attributes is _NO_ATTRIBUTES:
                    attributes = {}
                try:
                    attribute = mlir_attributes[key]
                except TypeError:
                    attributes[key] = self._hidden_attribute(op, key)
                    continue
                value = known(attribute)
                attributes[key] = read_attribute(attribute) if value is None else value
            regions = op.regions
            if len(regions):
                self._number = number
                regions = tuple([inner(region, values, function) for region in regions])
                number = self._number
            else:
                regions = ()
            made = []
            for result in op.results:
                type_ = result.type
                values[result] = value = Value(number, type_of(type_) or read_type(type_))
                made.append(value)
                number += 1
            if name == "stablehlo.custom_call":
                target = str(attributes.get("call_target_name"))
                if target == ELIDED_TARGET:
                    name = "stablehlo.constant"
                    filled = self._elision.fill(attributes.get("backend_config", "constant"), made[0].type)
                    attributes = {"value": filled}
                elif target.startswith(CARRIED_TARGET):
                    name, attributes = _carried(target, attributes)
            draft = _Draft(name, operands, tuple(made), attributes, regions, locate(op.location))
            draft.__class__ = Op  # pyright: ignore[reportAttributeAccessIssue]
            ops.append(draft)
        self._number = number
        return Region(tuple(arguments), tuple(ops), results)


def _carried(target: str, attributes: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The name and attributes of an HLO instruction that a custom call carried through the converter."""
    config = attributes.get("mhlo.backend_config", attributes.get("backend_config"))
    kept = {key: attributes[key] for key in ("called_computations", "mhlo.sharding") if attributes.get(key)}
    return f"hlo.{target.removeprefix(CARRIED_TARGET)}", {**(config if isinstance(config, Mapping) else {}), **kept}


def _attribute_from_text(text: str, name: str) -> Any:
    """Finds `name = dense<...> : type` in the text of one operation in generic form."""
    for opening in (f"{name} = dense<", f'"{name}" = dense<'):
        start = text.find(opening)
        if start >= 0:
            break
    else:
        raise FormatError(f"the attribute {name} cannot be read", where=text[:200])
    start += len(opening) - len("dense<")
    end = text.index("> : tensor<", start)
    depth, stop = 0, end + 4
    for stop in range(end + 4, len(text)):
        depth += {"<": 1, ">": -1}.get(text[stop], 0)
        if depth == 0 and text[stop] == ">":
            break
    type_ = parse_type(text[end + 4 : stop + 1])
    if not isinstance(type_, TensorType):
        return Unparsed(text[start : stop + 1])
    return dense_from_text(text[start : stop + 1], type_)
