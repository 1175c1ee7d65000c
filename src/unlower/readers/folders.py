"""Folders that hold programs: SavedModels, torch_xla bundles, XLA dumps; what is in them, and which program to take.

A dump folder has a handful of files for each module: the module before and after optimizations, as proto and as text, and
much that is no module. Files are grouped by module, and of each group the one nearest to the source is taken.
"""

import os
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from unlower.errors import FormatError

__all__ = ["Content", "dump_contents", "pick_from_dump"]


class Content(NamedTuple):
    """One thing in a folder.

    Attributes:
      name: the file or the entry, relative to the folder.
      what: what it is, in words.
      size: in bytes, or None where that means nothing.
      option: what to pass to `load` to get it, e.g. `module='jit_step'`, or None for what is no program.
      chosen: whether `load` takes it without being told.
    """

    name: str
    what: str
    size: int | None = None
    option: str | None = None
    chosen: bool = False


_STAGES: list[tuple[str, str]] = [
    # The modules of a dump by the end of their name, best first, and what they are.
    (r"before_optimizations\.hlo\.pb(\.gz)?", "HLO before optimizations, proto"),
    (r"execution_\d+\.hlo_unoptimized_snapshot\.pb(\.gz)?", "HLO before optimizations, proto with inputs"),
    (r"before_optimizations\.txt", "HLO before optimizations, text"),
    (r"\w*after_optimizations\.hlo\.pb(\.gz)?", "HLO after optimizations, proto"),
    (r"snapshot\.-?\d+\.pb(\.gz)?", "HLO after optimizations, proto with inputs"),
    (r"\w*after_optimizations\.txt", "HLO after optimizations, text"),
    (r"\d+\..+\.after_.+\.hlo\.pb(\.gz)?", "HLO between two passes, proto"),
    (r"\d+\..+\.after_.+\.txt", "HLO between two passes, text"),
]
_NAME = re.compile(rf"(?P<module>module_\d+\..+?)\.(?P<stage>{'|'.join(pattern for pattern, _ in _STAGES)})")
_OWN_FOLDER = re.compile(r"(.*/)?module_\d+\.[^/]+")
"""A folder in a dump that has more of one module: what XLA was given, in MLIR."""

_OTHERS: list[tuple[str, str]] = [
    # What else is in a dump, by name; its content may look like something that it is not.
    (r".*memory-usage-report\.(pb|txt)", "a memory report of XLA, no program"),
    (r".*buffer-assignment(-values)?\.txt", "a buffer assignment of XLA, no program"),
    (r".*live-range\.txt", "live ranges of XLA's buffers, no program"),
    (r".*\.hlo_unoptimized_snapshot\.txt", "an HLO snapshot as text of a protobuf, which is not read"),
    (r"(.*\.)?debug_options", "XLA's options, no program"),
    (r".*autotune_results.*", "XLA's autotuning results, no program"),
    (r".*thunk_sequence(\.\w+)?", "XLA's compiled schedule, no program"),
    (r".*\.(ptx|cubin|hsaco|spv)", "GPU code, no program that can be read"),
    (r".*\.(o|obj|so|s|asm)", "machine code, no program that can be read"),
    (r".*\.(html|svg|url)", "a drawing of a graph, no program"),
]
Sniff = Callable[[pathlib.Path], tuple[str, bool]]
"""Says of a file, by its content, what it is and whether it is a program."""


class _File(NamedTuple):
    path: pathlib.Path
    name: str
    what: str
    group: str | None
    """The module it holds, or None for no program."""
    rank: int = 0


def dump_contents(folder: pathlib.Path, sniff: Sniff) -> list[Content]:
    """Lists the files of a folder: what each is, and how to load it.

    Args:
      folder: the folder.
      sniff: tells what a file is that no dump has by that name.
    """
    files = _files(folder, sniff)
    groups = _groups(files)
    listed = []
    for file in files:
        best = file.group is not None and groups[file.group][0] is file
        option = None if file.group is None else f"module={(file.group if best else file.name)!r}"
        size = file.path.stat().st_size
        listed.append(Content(file.name, file.what, size, option, best and len(groups) == 1))
    return listed


def pick_from_dump(folder: pathlib.Path, sniff: Sniff, module: str | None = None) -> pathlib.Path:
    """Chooses the file to load from a folder of programs.

    Args:
      folder: the folder.
      sniff: tells what a file is that no dump has by that name.
      module: the name of a module (`jit_step`, or `module_0001.jit_step`) or of a file in the folder; needed where there
        are several modules.

    Raises:
      FormatError: no program, several modules, or none of that name; the message lists what is there.
    """
    files = _files(folder, sniff)
    groups = _groups(files)
    if module is not None:
        for file in files:
            if module == file.name:
                return file.path
        found = [group for group in groups if module == group] or [g for g in groups if module == _short(g)]
        if len(found) == 1:
            return groups[found[0]][0].path
        if found:
            raise FormatError(
                f"several modules are called {module!r}",
                where=str(folder),
                mend=f"name one in full: {', '.join(found)}",
            )
        raise FormatError(f"the folder has no module {module!r}", where=str(folder), mend=_listing(groups))
    if len(groups) == 1:
        return next(iter(groups.values()))[0].path
    if groups:
        raise FormatError(
            f"the folder holds {len(groups)} modules",
            where=str(folder),
            mend=f"choose one, module=...: {_listing(groups)}",
        )
    shown = "; ".join(f"{file.name}: {file.what}" for file in files[:8]) + ("; ..." if len(files) > 8 else "")
    raise FormatError(
        "the folder holds no program",
        where=f"{folder}: {shown or 'it is empty'}",
        mend="a folder can be a TensorFlow SavedModel, a torch_xla bundle, an XLA dump or hold any file that can be loaded",
    )


def _listing(groups: dict[str, list[_File]]) -> str:
    by_size = sorted(groups.items(), key=lambda item: -item[1][0].path.stat().st_size)
    shown = [f"{_unique_name(name, groups)} ({files[0].path.stat().st_size} bytes)" for name, files in by_size[:30]]
    return ", ".join(shown) + (f", and {len(by_size) - 30} smaller ones" if len(by_size) > 30 else "")


def _unique_name(group: str, groups: Iterable[str]) -> str:
    short = _short(group)
    return short if sum(_short(other) == short for other in groups) == 1 else group


def _short(group: str) -> str:
    return re.sub(r"(.*/)?module_\d+\.", "", group)


def _groups(files: Iterable[_File]) -> dict[str, list[_File]]:
    """The programs by module, best first."""
    groups: dict[str, list[_File]] = {}
    for file in files:
        if file.group is not None:
            groups.setdefault(file.group, []).append(file)
    for members in groups.values():
        members.sort(key=lambda file: (file.rank, len(file.name), file.name))
    return groups


def _files(folder: pathlib.Path, sniff: Sniff) -> list[_File]:
    """The files of a folder and of the folders in it, two deep: XLA puts some of a module's in a folder of its own."""
    found = []
    for root, folders, names in os.walk(folder):
        depth = len(pathlib.Path(root).relative_to(folder).parts)
        folders[:] = sorted(folders) if depth < 2 else []
        found += [_file(pathlib.Path(root) / name, folder, sniff) for name in sorted(names)]
    return found


def _file(path: pathlib.Path, folder: pathlib.Path, sniff: Sniff) -> _File:
    name = path.relative_to(folder).as_posix()
    match = _NAME.fullmatch(path.name)
    for rank, (pattern, what) in enumerate(_STAGES):
        if match and re.fullmatch(pattern, match["stage"]):
            group = name.removesuffix(path.name) + match["module"]
            return _File(path, name, what, group, rank)
    for pattern, what in _OTHERS:
        if re.fullmatch(pattern, path.name):
            return _File(path, name, what, None)
    what, is_program = sniff(path)
    folder_of = name.removesuffix(f"/{path.name}")
    group = folder_of if _OWN_FOLDER.fullmatch(folder_of) else name
    return _File(path, name, what, group if is_program else None, len(_STAGES))
