"""Compiles Triton kernels for a GPU that is not there, and reads registers, stack and instructions
from the machine code.

The interpreter, with which these kernels are tested on CPU, replaces every kernel of a process, so
that compiling is done in a process of its own: `python -m tests.kernels.compilation` reads cases as
JSON lines and answers each with one line.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HOPPER = 90
MOST_SHARED_MEMORY = 232_448
"""Bytes that a program may have on an H100 or H200."""


@dataclass(frozen=True)
class Case:
    """One kernel in one configuration, with arguments as they are in use.

    `kernel`: "module:name". `arguments`: by name, in any order: "*bf16" a tensor (its address a
    multiple of 16), a number an integer that is specialised as Triton does (1 is a constant,
    multiples of 16 are known to be), a float, True or False a constant, ["bf16"] a type, None
    nothing. `config`: the place in the list of `launcher` ("module:NAME"), whose tiles, warps and
    stages are taken.
    """

    kernel: str
    arguments: dict[str, Any]
    launcher: str
    config: int = 0

    def __str__(self) -> str:
        kinds = "-".join(
            str(value[0]) for value in self.arguments.values() if isinstance(value, list)
        )
        return (
            f"{self.kernel.split(':')[1]}-{self.launcher.split(':')[1]}-{self.config}"
            + f"-{kinds}" * bool(kinds)
        )


@dataclass(frozen=True)
class Resources:
    """What one program of a compiled kernel takes; `instructions` counts matrix and slow-memory
    ones by name."""

    registers: int
    stack: int
    shared: int
    instructions: dict[str, int] = field(default_factory=dict)

    @property
    def spills(self) -> bool:
        """Whether registers are kept in memory."""
        return (
            self.stack > 0
            or bool(self.instructions.get("LDL"))
            or bool(self.instructions.get("STL"))
        )


def compile_all(cases: list[Case]) -> list[Resources]:
    """Compiles the cases in one process without the interpreter. Raises RuntimeError with its words
    where one does not compile."""
    results = []
    for case in cases:
        process = _compiler()
        process.stdin.write(json.dumps(asdict(case)) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            _compiler.cache_clear()
            raise RuntimeError(process.communicate()[1][-4000:])
        results.append(Resources(**json.loads(answer)))
    return results


@functools.cache
def _compiler() -> Any:
    """One process for all cases of a run: it takes longer to import torch than to compile most of
    them."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.kernels.compilation"],
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    atexit.register(process.communicate)  # at the end of its input it ends
    return process


def assert_compiles(cases: list[Case], *, matrix: str | None = "HGMMA") -> list[Resources]:
    """That no case spills or takes more memory than there is, and that those on half precision use
    the instructions `matrix`."""
    results = compile_all(cases)
    for case, resources in zip(cases, results, strict=True):
        assert not resources.spills, f"{case} spills: {resources}"
        assert resources.shared <= MOST_SHARED_MEMORY, f"{case}: {resources}"
        if matrix and case.arguments.get("DOT") in (["bf16"], ["fp16"]):
            assert resources.instructions.get(matrix), f"{case} uses no {matrix}: {resources}"
    return results


def compile_case(case: Case) -> Resources:
    """Compiles one case in this process, for sm_90."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from recallkit.kernels.launch import OPTIONS

    kernel, launcher = _find(case.kernel), _find(case.launcher)
    operands = {**case.arguments, **launcher.configs[case.config].kwargs}
    types = {"bf16": tl.bfloat16, "fp16": tl.float16, "fp32": tl.float32}
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        value = operands.pop(name)
        constant = (
            kernel.params[place].is_constexpr
            or value is None
            or isinstance(value, (bool, list))
            or (type(value) is int and value == 1)
        )
        if constant:
            signature[name], constants[(place,)] = (
                "constexpr",
                types[value[0]] if isinstance(value, list) else value,
            )
        elif isinstance(value, str):
            signature[name] = value
        else:
            signature[name] = (
                "fp32" if isinstance(value, float) else "i32" if value < 2**31 else "i64"
            )
        if signature[name].startswith("*") or (signature[name][0] == "i" and value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    if operands:
        raise ValueError(f"{case}: no such arguments: {', '.join(operands)}")
    config = launcher.configs[case.config]
    options = {**OPTIONS, "num_warps": config.num_warps, "num_stages": config.num_stages}
    options |= {"maxnreg": config.maxnreg} if config.maxnreg else {}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", HOPPER, 32), options=options)
    return _inspect(compiled.asm["cubin"], compiled.metadata.shared)


def _inspect(cubin: bytes, shared: int) -> Resources:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage, code = (
            subprocess.run([tool, option, path], capture_output=True, text=True, check=True).stdout
            for option in ("-res-usage", "-sass")
        )
    results = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert results, usage
    names = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9]+)", code, re.MULTILINE)
    counted = {
        name: names.count(name) for name in ("HGMMA", "HMMA", "LDL", "STL", "LDGSTS", "MUFU")
    }
    return Resources(
        int(results[1]),
        int(results[2]),
        shared,
        {name: count for name, count in counted.items() if count},
    )


def _find(path: str) -> Any:
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(asdict(compile_case(Case(**json.loads(line))))), flush=True)
