"""A user's own model, `path/to/file.py:function`: Python code that the user names and that is
therefore run.

`function(plan: ModelPlan)` returns an object that implements `ScoringModel`, or something
that maps ids (b, t) int64 to logits (b, t, vocab), or to an object with `.logits`: a
torch.nn.Module or any callable. A module is moved to the plan's device and dtype and put in
evaluation mode. These names in the file and attributes of the module are used:

    FILES = ["weights.safetensors"]      in the file: the files that it reads, relative to it; a
        change of one is detected
    TOKENIZER = "tokenizer.json"         in the file: the model's own tokenizer, where it is not
        that of the slices
    vocab_size, max_length               of the module: entries of its logits, longest context
        (None: no limit)
    read(ids, state) -> logits, state    of the module: continues from a state, None at the
        beginning; a tensor, or nested tuples,
                                         lists and dicts of tensors. Then text is read in chunks,
                                             and generated token by token
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import sys
import textwrap
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import plugins
from recallkit.errors import UserError
from recallkit.models.devices import memory_errors
from recallkit.storage import hashing
from recallkit.storage.given_files import check_file, read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType


def is_user_function(text: str) -> bool:
    """Whether a name is FILE.py:FUNCTION, or the function of a plug-in."""
    return ".py:" in text or plugins.find_function(text) is not None


def open_function(spec: str) -> tuple[UserCode, Callable[..., Any]]:
    """The code and the function of FILE.py:FUNCTION; the file is run, the function is not. Raises
    UserError as `identify_function` does."""
    code, name = _open(spec)
    return code, _function(code, name, spec)


def identify_function(spec: str) -> str:
    """Digest of the name of FILE.py:FUNCTION, of its file, of the modules in its folder that it
    imports, and of its FILES.

    The file is run, the function is not. Raises UserError where one of them is missing or the
    file's code fails.
    """
    code, name = _open(spec)
    _function(code, name, spec)
    files = [hashing.digest_weights(file) for file in _files(code, spec)]
    return hashing.digest_json([code.digest, name, files])


def own_tokenizer(spec: str) -> str | None:
    """The tokenizer that a user's file names as its model's own (TOKENIZER): a path, a hub id or
    `bytes`; else None.

    A path relative to the file is returned as one that can be opened from here. Raises UserError
    where it is not a string, or the file's code fails.
    """
    code, _ = _open(spec)
    tokenizer = getattr(code.module, "TOKENIZER", None)
    if tokenizer is None:
        return None
    if not isinstance(tokenizer, str | Path):
        raise UserError(
            f"its TOKENIZER is {tokenizer!r}",
            where=spec,
            remedy="name a path, a hub id or 'bytes'",
        )
    beside = code.path.parent / tokenizer
    return str(beside if beside.exists() else tokenizer)


# ---------------------------------------------------------------------------- the file and its code


@dataclass(frozen=True, slots=True)
class UserCode:
    """A user's file that has been run, or (None) the code of a live module: what its errors and its
    imports become."""

    path: Path = Path()
    module: ModuleType | None = None
    digest: str = ""
    """Of the file's bytes and of the modules in its folder that it imported at its top level, as
    they were when it was run."""
    beside: dict[str, ModuleType] = field(default_factory=dict)
    """Modules in its folder that it has imported."""

    @contextlib.contextmanager
    def running(self, spec: str) -> Iterator[None]:
        """A block in which the user's code runs; what it prints goes to stderr, since stdout is for
        results.

        Raises UserError for whatever it raises, but MemoryError where it runs out of memory, so
        that a smaller batch can be tried.
        """
        try:
            with memory_errors(), self._imports_beside(), contextlib.redirect_stdout(sys.stderr):
                yield
        except (UserError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            raise UserError(f"raised {_message(error)}{self._line(error)}", where=spec) from error

    @contextlib.contextmanager
    def _imports_beside(self) -> Iterator[None]:
        """Imports in the block look in the file's folder first, as those of a script do.

        Two models may each have a `model.py` in their folder: such modules are removed after the
        block and restored in the next.
        """
        if self.module is None:
            yield
            return
        folder, before = str(self.path.parent), sys.modules.copy()
        sys.modules.update(self.beside)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):  # the user's code may have removed it
                sys.path.remove(folder)
            modules = sys.modules.copy().items()
            changed = {name: module for name, module in modules if before.get(name) is not module}
            for name, module in changed.items():
                if name in self.beside or self._is_beside(name):
                    self.beside[name] = module
            for name in self.beside:
                sys.modules.pop(name, None)
            sys.modules.update({name: before[name] for name in self.beside if name in before})

    def _is_beside(self, name: str) -> bool:
        """Whether a new module is, or is in, one that is directly in the file's folder, not in a
        .venv below it."""
        root = sys.modules.get(name.partition(".")[0])
        places = [getattr(root, "__file__", None), *getattr(root, "__path__", ())]
        folders = [Path(place).parent for place in places if place]
        return root is not self.module and self.path.parent in folders

    def files_beside(self) -> list[str]:
        """Files of the imported modules in its folder."""
        files = [getattr(module, "__file__", None) for module in self.beside.values()]
        return sorted(filter(None, files))

    def _line(self, error: BaseException) -> str:
        """The last line of the user's own files that an error passed through; "" where it passed
        none."""
        if isinstance(error, SyntaxError) and error.filename:
            return f" ({Path(error.filename).name} line {error.lineno})"
        files = {str(self.path), *self.files_beside()}
        for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
            file = frame.f_code.co_filename
            if file in files:
                return f" ({Path(file).name} line {line})"
        return ""


_MODULE = "recallkit_user_"
"""Prefix of the module names of users' files."""

_RUN: dict[str, UserCode] = {}
"""Files that were run, by path and digest of their bytes: each is run once, however often it is
used."""


def _open(spec: str) -> tuple[UserCode, str]:
    """The code that a name refers to, after running it, and the name of its function, "" if there
    is none."""
    plugin = None if Path(spec).exists() else plugins.find_function(spec)
    spec = spec if plugin is None else plugin.function()
    file, name = spec, ""
    if ".py:" in spec and not Path(spec).exists():
        file, _, name = spec.rpartition(":")
    path = Path(file).absolute()
    if not check_file(path).is_file():
        raise UserError("no such file", where=file, remedy="give path/to/file.py:function")
    source = read_file(path)
    key = hashing.digest_bytes(str(path).encode(), source)[:16]
    if key not in _RUN:
        _RUN[key] = _run_file(spec, path, source, _MODULE + key)
    return _RUN[key], name


def _run_file(spec: str, path: Path, source: bytes, name: str) -> UserCode:
    """Runs exactly the bytes that were digested, as a module with a name of its own, so that its
    classes can be pickled."""
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    module = importlib.util.module_from_spec(module_spec)
    importlib.invalidate_caches()
    code = UserCode(path, module)
    sys.modules[name] = module
    try:
        with code.running(spec):
            program = compile(source, str(path), "exec", dont_inherit=True)
            exec(program, module.__dict__)  # noqa: S102 - the user named it
    except BaseException:
        del sys.modules[name]
        raise
    beside = [hashing.digest_file(Path(file)) for file in code.files_beside()]
    return replace(code, digest=hashing.digest_json([hashing.digest_bytes(source), beside]))


def _function(code: UserCode, name: str, spec: str) -> Callable[..., Any]:
    if not hasattr(code.module, name):
        own = vars(code.module)
        functions = {key: value for key, value in own.items() if inspect.isfunction(value)}
        module = own["__name__"]
        known = [key for key, value in functions.items() if value.__module__ == module]
        near = difflib.get_close_matches(name, known, n=1)
        names = ", ".join(known) or "none"
        remedy = f"write {code.path.name}:FUNCTION; it has {names}"
        if near:
            remedy = f"did you mean {near[0]}?"
        raise UserError(
            f"no function {name!r} in it" if name else "its function is not named",
            where=spec,
            remedy=remedy,
        )
    function: Callable[..., Any] = getattr(code.module, name)
    if not callable(function):
        raise UserError(
            f"{name} is an object of {type(function).__name__}, not a function",
            where=spec,
        )
    return function


def _files(code: UserCode, spec: str) -> list[Path]:
    """The files that FILES names. Raises UserError where one is missing."""
    names = getattr(code.module, "FILES", ())
    is_list = isinstance(names, list | tuple)
    if not is_list or not all(isinstance(name, str | Path) for name in names):
        raise UserError(
            "its FILES is not a list of file names",
            where=spec,
            remedy='write FILES = ["weights.safetensors"]',
        )
    files = [code.path.parent / name for name in names]
    for file in files:
        if not check_file(file).is_file():
            raise UserError(f"no such file, but FILES of {code.path.name} names it", where=file)
    return files


def _message(error: BaseException) -> str:
    """The error's type, and its message in at most 400 characters."""
    text = textwrap.shorten(str(error.msg if isinstance(error, SyntaxError) else error), 400)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
