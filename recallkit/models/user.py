"""A user's own model, `path/to/file.py:function`: Python code that the user names and that is therefore run.

`function(request: ModelRequest)` returns an object that implements `ScoringModel`, or something that maps ids (b, t) int64 to
logits (b, t, vocab), or to an object with `.logits`: a torch.nn.Module or any callable. A module is moved to the request's
device and dtype and put in evaluation mode. These names in the file and attributes of the module are used:

    FILES = ["weights.safetensors"]      in the file: the files that it reads, relative to it; a change of one is detected
    TOKENIZER = "tokenizer.json"         in the file: the model's own tokenizer, where it is not that of the slices
    vocab_size, max_length               of the module: entries of its logits, longest context (None: no limit)
    hidden(ids) -> (b, t, d), head       of the module: its states and the nn.Linear that maps them to logits, a few rows at a time
    read(ids, state) -> logits, state    of the module: continues from a state, None at the beginning; a tensor, or nested tuples,
                                         lists and dicts of tensors. Then text is read in chunks, and generated token by token
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib
import importlib.util
import inspect
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.errors import UserError
from recallkit.models.generation import by_scoring
from recallkit.models.protocol import Continuation, TokenScores
from recallkit.models.resources import memory_errors
from recallkit.models.torch_model import TorchModel, choose_device, choose_dtype
from recallkit.storage import artifacts
from recallkit.storage.given_files import check_file, read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    import torch
    from torch import Tensor

    from recallkit.kernels.token_nll.reference import TokenNll
    from recallkit.models.protocol import ModelRequest, ScoringModel, Sharing

_PROBED_IDS = 64
"""Ids of the sequence that a module is checked on; a multiple of the chunk lengths of common kernels."""

_PROTOCOL = ("vocab_size", "max_length", "batch_tokens", "score")


def identify_user_model(request: ModelRequest) -> str:
    """Digest of the function's name, of its file, of the modules in its folder that it imports, and of its FILES.

    The file is run, the function is not. Raises UserError where one of them is missing or the file's code fails.
    """
    code, _ = _open(request.spec)
    files = [artifacts.digest_weights(file) for file in _files(code, request.spec)]
    return artifacts.digest_json([code.digest, request.spec.rpartition(":")[2], files])


def load_user_model(request: ModelRequest) -> ScoringModel:
    """Runs the function; `request.device` is passed to it as torch names it, never as `auto`.

    A module is checked on random ids before it is used. Raises UserError for errors of the code, for a result that is not a
    model, and for a model that would give wrong scores: one that is not causal, or whose sequences see each other.
    """
    device = choose_device(request.device)
    code, function = _open(request.spec)
    try:
        with code.running(request.spec):
            made = function(dataclasses.replace(request, device=str(device)))
            missing = [name for name in _PROTOCOL if not hasattr(made, name)]
        if not missing:
            return UserScoringModel(made, code, request.spec)
        if callable(made):
            return UserModule(made, code, request, device)
    except MemoryError:
        raise UserError("out of memory while it was loaded and checked", where=request.spec) from None
    given = _kind(made)
    wanted = f"return a torch.nn.Module, or add {', '.join(missing)}"
    raise UserError(f"the function returned {given}, which is not a model", where=request.spec, remedy=wanted)


def user_tokenizer(spec: str) -> str | None:
    """The tokenizer that a user's file names as its model's own (TOKENIZER): a path, a hub id or `bytes`; else None.

    A path relative to the file is returned as one that can be opened from here. Raises UserError where it is not a string, or
    the file's code fails.
    """
    code, _ = _open(spec)
    named = getattr(code.module, "TOKENIZER", None)
    if named is None:
        return None
    if not isinstance(named, str | Path):
        raise UserError(f"its TOKENIZER is {named!r}", where=spec, remedy="name a path, a hub id or 'bytes'")
    beside = code.path.parent / named
    return str(beside if beside.exists() else named)


# ------------------------------------------------------------------------------------------------- the file and its code


@dataclass(frozen=True, slots=True)
class _UserCode:
    """A user's file that is running or has been run: its module, and the modules in its folder that it has imported."""

    path: Path
    module: ModuleType
    beside: dict[str, ModuleType] = field(default_factory=dict)
    digest: str = ""
    """Of the file's bytes and of the modules in its folder that it imported at its top level, as they were when it was run."""

    @contextlib.contextmanager
    def running(self, spec: str) -> Iterator[None]:
        """A block in which the user's code runs; what it prints goes to stderr, since stdout is for results.

        Raises UserError for whatever it raises, but MemoryError where it runs out of memory, so that a smaller batch can be tried.
        """
        with self._user_errors(spec), memory_errors(), self._imports_beside(), contextlib.redirect_stdout(sys.stderr):
            yield

    @contextlib.contextmanager
    def _imports_beside(self) -> Iterator[None]:
        """Imports in the block look in the file's folder first, as those of a script do.

        Two models may each have a `model.py` in their folder: such modules are removed after the block and restored in the next.
        """
        folder, before = str(self.path.parent), sys.modules.copy()
        sys.modules.update(self.beside)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):  # the user's code may have removed it
                sys.path.remove(folder)
            changed = [name for name, module in sys.modules.copy().items() if before.get(name) is not module]
            ours = [name for name in changed if name in self.beside or self._holds(name, before)]
            self.beside.update({name: sys.modules.pop(name) for name in ours})
            sys.modules.update({name: before[name] for name in self.beside if name in before})

    def _holds(self, name: str, before: dict[str, ModuleType]) -> bool:
        """Whether a new module belongs to a top-level one directly in the file's folder, not in a .venv below it."""
        root = name.partition(".")[0]
        if root in before or root.startswith(_MODULE) or root not in sys.modules:
            return False
        places = [getattr(sys.modules[root], "__file__", None), *getattr(sys.modules[root], "__path__", ())]
        return any(Path(place).parent == self.path.parent for place in places if place)

    def files_beside(self) -> list[str]:
        """Files of the imported modules in its folder."""
        files = (getattr(module, "__file__", None) for module in self.beside.values())
        return sorted(file for file in files if file)

    @contextlib.contextmanager
    def _user_errors(self, spec: str) -> Iterator[None]:
        try:
            yield
        except (UserError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            raise UserError(f"raised {_message(error)}{self._place(error)}", where=spec) from error

    def _place(self, error: BaseException) -> str:
        """The last line of the user's own files that an error passed through; "" where it passed none."""
        if isinstance(error, SyntaxError) and error.filename:
            return f" ({Path(error.filename).name} line {error.lineno})"
        files = {str(self.path), *self.files_beside()}
        places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        places = [(file, line) for file, line in places if file in files]
        return f" ({Path(places[-1][0]).name} line {places[-1][1]})" if places else ""


_MODULE = "recallkit_user_"
"""Prefix of the module names of users' files."""

_RUN: dict[Path, tuple[str, _UserCode]] = {}
"""Files that were run, with the digest of their bytes: each is run once, however often it is used."""


def _open(spec: str) -> tuple[_UserCode, Callable[..., Any]]:
    """The code that a name refers to, after running it, and its function."""
    file, _, name = spec.rpartition(":") if ".py:" in spec and not Path(spec).exists() else (spec, "", "")
    path = Path(file).absolute()
    if not check_file(path).is_file():
        raise UserError("no such file", where=file, remedy="give path/to/file.py:function")
    source = read_file(path)
    digest = artifacts.digest_bytes(source)
    if path not in _RUN or _RUN[path][0] != digest:
        _RUN[path] = (digest, _run_file(spec, path, source))
    code = _RUN[path][1]
    return code, _function(code, name, spec)


def _run_file(spec: str, path: Path, source: bytes) -> _UserCode:
    """Runs exactly the bytes that were digested, as a module with a name of its own, so that its classes can be pickled."""
    name = f"{_MODULE}{artifacts.digest_bytes(str(path).encode(), source)[:16]}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    module = importlib.util.module_from_spec(module_spec)
    importlib.invalidate_caches()
    code = _UserCode(path, module)
    sys.modules[name] = module
    try:
        with code.running(spec):
            exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the user named it
    except BaseException:
        del sys.modules[name]
        raise
    beside = [artifacts.digest_file(Path(file)) for file in code.files_beside()]
    return dataclasses.replace(code, digest=artifacts.digest_json([artifacts.digest_bytes(source), beside]))


def _function(code: _UserCode, name: str, spec: str) -> Callable[..., Any]:
    if not hasattr(code.module, name):
        known = [key for key, value in vars(code.module).items() if inspect.isfunction(value) and value.__module__ == code.module.__name__]
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"write {code.path.name}:FUNCTION; it has {', '.join(known) or 'none'}"
        raise UserError(f"no function {name!r} in it" if name else "its function is not named", where=spec, remedy=remedy)
    function: Callable[..., Any] = getattr(code.module, name)
    if not callable(function):
        raise UserError(f"{name} is an object of {type(function).__name__}, not a function", where=spec)
    return function


def _files(code: _UserCode, spec: str) -> list[Path]:
    """The files that FILES names. Raises UserError where one is missing."""
    named = getattr(code.module, "FILES", ())
    if not isinstance(named, list | tuple) or not all(isinstance(name, str | Path) for name in named):
        raise UserError("its FILES is not a list of file names", where=spec, remedy='write FILES = ["weights.safetensors"]')
    files = [code.path.parent / name for name in named]
    for file in files:
        if not check_file(file).is_file():
            raise UserError(f"no such file, but FILES of {code.path.name} names it", where=file)
    return files


def _message(error: BaseException) -> str:
    """The error's type, and its message in at most 400 characters."""
    text = str(error.msg if isinstance(error, SyntaxError) else error).strip()
    text = text if len(text) <= 400 else f"{text[:400]} ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# ---------------------------------------------------------------------------------------------------------- the two kinds


class UserScoringModel:
    """A user's object that implements `ScoringModel`; `CarryingModel` with `score_carrying`, `GeneratingModel` with `generate`."""

    def __init__(self, inner: Any, code: _UserCode, name: str) -> None:
        self.inner = inner
        self.code = code
        self.name = name
        self.vocab_size = _whole_number(inner.vocab_size, "vocab_size", name)
        self.max_length = None if inner.max_length is None else _whole_number(inner.max_length, "max_length", name)

    def batch_tokens(self, seq_len: int) -> int:
        """See `ScoringModel.batch_tokens`."""
        with self.code.running(self.name):
            return _whole_number(self.inner.batch_tokens(seq_len), "batch_tokens", self.name)

    def score(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        """See `ScoringModel.score`. Raises UserError unless it returns one value per prediction."""
        return self._scored("score", ids, offsets)

    def score_carrying(self, ids: np.ndarray, offsets: np.ndarray, chunk: int) -> TokenScores:
        """See `CarryingModel.score_carrying`. Raises UserError where the user's object has none."""
        if not hasattr(self.inner, "score_carrying"):
            raise _cannot_carry(self.name)
        return self._scored("score_carrying", ids, offsets, chunk)

    def generate(
        self, prompts: Sequence[np.ndarray], answers: Sequence[np.ndarray], most: int, is_done: Callable[[int, list[int]], bool]
    ) -> list[Continuation]:
        """See `GeneratingModel.generate`; by scoring where the user's object has none. Raises UserError for anything else."""
        if not hasattr(self.inner, "generate"):
            return by_scoring(self, prompts, answers, most, is_done)
        with self.code.running(self.name):
            made = self.inner.generate(prompts, answers, most, is_done)
        try:
            pairs = [([int(i) for i in each.ids], np.asarray(each.answer_nll).astype(np.float32)) for each in made]
        except (AttributeError, TypeError, ValueError):
            pairs = []
        if [nll.shape for _, nll in pairs] != [(len(answer),) for answer in answers]:
            problem = f"generate() returned no ids and answer_nll for each of {len(prompts)} prompts, one number per id of the answer"
            raise UserError(problem, where=self.name, remedy="return a list of recallkit.models.protocol.Continuation")
        return [Continuation(ids, nll) for ids, nll in pairs]

    def _scored(self, method: str, ids: np.ndarray, offsets: np.ndarray, *chunk: int) -> TokenScores:
        with self.code.running(self.name):
            scores = getattr(self.inner, method)(ids, offsets, *chunk)
        num_predictions, values = len(ids) - len(offsets) + 1, dict[str, np.ndarray]()
        for name, dtype in (("nll", np.float32), ("argmax", np.int32), ("rank", np.int32)):
            try:
                values[name] = np.asarray(getattr(scores, name, None)).astype(dtype)
            except (TypeError, ValueError):
                values[name] = np.empty(())
            if values[name].shape != (num_predictions,):
                problem = f"score() returned no array {name} of {num_predictions} numbers, one per prediction"
                raise UserError(problem, where=self.name, remedy="return recallkit.models.protocol.TokenScores")
        return TokenScores(**values)


class UserModule(TorchModel):
    """A user's torch module, or any callable from ids to logits, as a `ScoringModel`."""

    prompt_chunk = 256

    def __init__(self, module: Any, code: _UserCode, request: ModelRequest, device: torch.device) -> None:
        import torch

        self.module, self.code = module, code
        self.is_module = isinstance(module, torch.nn.Module)
        dtype = choose_dtype(request.dtype)
        self.is_wide = dtype is torch.float64
        self.tolerance = torch.finfo(dtype).eps ** 0.5
        self.can_read = self.is_module and inspect.ismethod(getattr(module, "read", None))
        with code.running(request.spec):
            if self.is_module:
                _move(module, device, dtype).eval()
            vocab_size, max_length = (getattr(module, name, None) for name in ("vocab_size", "max_length"))
        super().__init__(
            request.spec,
            device,
            vocab_size=0 if vocab_size is None else _whole_number(vocab_size, "vocab_size", request.spec),
            max_length=None if max_length is None else _whole_number(max_length, "max_length", request.spec),
        )
        self.head = self._find_head()
        with torch.inference_mode():
            if vocab_size is None:
                self.vocab_size = self._logits(torch.zeros(1, 1, dtype=torch.int64, device=device)).shape[2]
            self.num_ids = min(self.vocab_size, request.vocab_size)
            self._probe(self.num_ids, self.tolerance)

    def bytes_per_token(self, seq_len: int) -> int:
        """See `TorchModel.bytes_per_token`: logits, activations of the widest layer, a matrix of scores for 16 heads."""
        width = max((min(p.shape) for p in self.module.parameters() if p.ndim == 2), default=0) if self.is_module else 0
        logits = 3 * self.vocab_size if self.head is None else 0
        return max(super().bytes_per_token(seq_len), 4 * (logits + 64 * width + 32 * seq_len))

    def forward(self, inputs: Tensor, state: Any = None, *, carry: bool = False) -> tuple[Tensor, Any]:
        """See `TorchModel.forward`: hidden states where the module provides them, else logits; with `carry` always logits.

        With `carry`, raises UserError for a module that has no `read`, or whose `read` returns anything else.
        """
        if carry:
            return self._read_on(inputs, state)
        return (self._logits(inputs) if self.head is None else self._hidden(inputs)), None

    def reduce(self, outputs: Tensor, targets: Tensor) -> TokenNll:
        """See `TorchModel.reduce`."""
        from recallkit.kernels.token_nll.api import logits_nll, token_nll

        if self._are_logits(outputs):
            return logits_nll(outputs, targets)
        return token_nll(outputs, self.head.weight, targets, bias=self.head.bias)

    @functools.cached_property
    def joining(self) -> Sharing | None:
        """See `TorchModel.joining`."""
        import torch

        from recallkit.models import probes

        if not self.can_read or 0 < (self.max_length or 0) < probes.PROBED_IDS:
            return None
        ids = probes.random_ids(self.num_ids, (2, probes.PROBED_IDS), self.device)
        with torch.inference_mode():
            whole = torch.cat([self._logits(row) for row in ids[:, None]])
            return probes.find_joining(ids, whole, self._read_on, self.join, self.take, self.tolerance)

    def _read_on(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits (b, t, vocab) of ids (b, t) that follow a state, and the new state. Raises UserError for anything else."""
        if not self.can_read:
            raise _cannot_carry(self.name)
        with self.code.running(self.name), self._exactly():
            made = self.module.read(ids, state)
        if not isinstance(made, tuple) or len(made) != 2:
            raise UserError(f"read(ids, state) returned {_kind(made)}: logits and a state are expected", where=self.name)
        return self._checked(made[0], ids, "vocab", self.vocab_size), made[1]

    def pick(self, outputs: Tensor) -> Tensor:
        """See `TorchModel.pick`."""
        return outputs.argmax(-1) if self._are_logits(outputs) else super().pick(outputs)

    def _are_logits(self, outputs: Tensor) -> bool:
        """Whether rows of the outputs of `forward` are logits, not hidden states."""
        return self.head is None or outputs.shape[1] != self.head.in_features

    def _logits(self, ids: Tensor) -> Tensor:
        """Logits (b, t, vocab) of ids (b, t). Raises UserError for anything else."""
        with self.code.running(self.name), self._exactly():
            made = self.module(ids)
        return self._checked(getattr(made, "logits", made), ids, "vocab", self.vocab_size)

    def _hidden(self, ids: Tensor) -> Tensor:
        """Hidden states (b, t, d) of ids (b, t), d the width of the head. Raises UserError for anything else."""
        with self.code.running(self.name), self._exactly():
            made = self.module.hidden(ids)
        return self._checked(made, ids, "d", self.head.in_features)

    def _exactly(self) -> contextlib.AbstractContextManager[None]:
        """For requests in float64: float64 throughout, also where the module casts to a narrower dtype."""
        from recallkit.models.precision import widened

        return widened() if self.is_wide else contextlib.nullcontext()

    def _checked(self, made: Any, ids: Tensor, letter: str, width: int) -> Tensor:
        import torch

        b, t = ids.shape
        if isinstance(made, torch.Tensor):
            if made.ndim == 3 and made.shape[:2] == ids.shape and made.is_floating_point() and width in (0, made.shape[2]):
                return made.to(self.device)
            given = f"{str(made.dtype).removeprefix('torch.')} of shape {tuple(made.shape)}"
        else:
            given = _kind(made)
        wanted = f"({b}, {t}, {width or letter})"
        raise UserError(f"for ids of shape ({b}, {t}) it returned {given}: floating-point values {wanted} are expected", where=self.name)

    def _find_head(self) -> Any:
        """The module's `head` where it also has a method `hidden`, else None."""
        import torch

        offered = self.is_module and inspect.ismethod(getattr(self.module, "hidden", None))
        head = getattr(self.module, "head", None)
        if not offered or not isinstance(head, torch.nn.Linear):
            return None
        # Logits of `read` are distinguished from hidden states by their width.
        return None if self.can_read and head.in_features == head.out_features else head

    def _probe(self, num_ids: int, tolerance: float) -> None:
        """Checks the module on random ids; `tolerance` is relative to the largest value.

        Raises UserError where it is not causal, for then padding changes scores and every prediction may see its answer;
        where a sequence's values depend on its batch; or where head(hidden(ids)), or `read` in chunks, differs from the
        module's own output.
        """
        import torch

        length = min(_PROBED_IDS, self.max_length or _PROBED_IDS)
        same = length - length // 2
        ids = torch.from_numpy(np.random.default_rng(0).integers(0, num_ids, (1, length))).to(self.device)
        other_end = torch.cat([ids[:, :same], (ids[:, same:] + 1) % num_ids], dim=1)
        # The sequence is also the second row: it would see the first row if b and t were mixed up.
        alone, both = self.forward(ids)[0], self.forward(torch.cat([other_end, ids]))[0]
        if (difference := _difference(alone[0], both[1])) > tolerance:
            problem = f"the same ids have other values in another batch (by {difference:.2g} of the largest)"
            raise UserError(problem, where=self.name, remedy="switch dropout off; rows of a batch (b, t) must not see each other")
        if (difference := _difference(both[1, :same], both[0, :same])) > tolerance:
            problem = f"it is not causal: changing later ids changes earlier predictions (by {difference:.2g} of the largest value)"
            raise UserError(problem, where=self.name, remedy="mask what follows each id")
        if self.head is not None and (difference := self._head_difference(ids, alone)) > tolerance:
            problem = f"head(hidden(ids)) is not what the module returns (by {difference:.2g} of the largest logit)"
            raise UserError(problem, where=self.name, remedy="rename one of them, or make forward return the same")
        if self.can_read and (difference := self._read_difference(torch.cat([other_end, ids]))) > tolerance:
            problem = f"read(ids, state) in chunks is not what the module returns at once (by {difference:.2g} of the largest logit)"
            raise UserError(problem, where=self.name, remedy="continue from the whole state that read returned for the ids before")

    def _head_difference(self, ids: Tensor, hidden: Tensor) -> float:
        with self.code.running(self.name), self._exactly():
            logits = self.head(hidden)
        return _difference(logits, self._logits(ids))

    def _read_difference(self, ids: Tensor) -> float:
        import torch

        state, logits = None, []
        for piece in ids.tensor_split((2, 3, 4, ids.shape[1] // 2), dim=1):
            if piece.shape[1]:
                some, state = self._read_on(piece, state)
                logits.append(some)
        return _difference(torch.cat(logits, dim=1), self._logits(ids))


def _kind(made: Any) -> str:
    return "None" if made is None else f"an object of {type(made).__name__}"


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest difference relative to the largest value, over finite values; 0 where there are none."""
    import torch

    if one.shape != other.shape:
        return float("inf")
    if not one.numel():
        return 0.0
    one, other = one.double(), other.double()
    finite = torch.isfinite(one) & torch.isfinite(other)
    largest = torch.where(finite, one.abs(), 0.0).max()
    return float(torch.where(finite, (one - other).abs(), 0.0).max() / largest.clamp(min=1e-30))


def _move(module: torch.nn.Module, device: torch.device, dtype: torch.dtype) -> torch.nn.Module:
    """`module.to(device, dtype)`, but complex values stay complex: torch would discard their imaginary part."""
    import torch

    wide = torch.complex128 if dtype is torch.float64 else torch.complex64

    def moved(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else wide if tensor.is_complex() else tensor.dtype)

    module._apply(moved)  # type: ignore[no-untyped-call]
    return module


def _whole_number(value: Any, name: str, spec: str) -> int:
    """The value as a positive int. Raises UserError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise UserError(f"its {name} is {value!r}, not a positive integer", where=spec)
    return int(value)


def _cannot_carry(spec: str) -> UserError:
    return UserError("its state cannot be carried from chunk to chunk", where=spec, remedy="return an object with score_carrying")
