"""The package unpickles and evaluates nothing: a model, a request or a message is data, never code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "python" / "inferx"
FILES = sorted(PACKAGE.rglob("*.py"))
# Modules that run what they read, or can be made to.
FORBIDDEN_MODULES = {
    *("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "jsonpickle", "joblib", "marshal", "shelve"),
    *("code", "codeop", "runpy"),
}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
# (object, attribute): torch.load unpickles; numpy.load may; multiprocessing's connections do.
FORBIDDEN_ATTRIBUTES = {
    *(("torch", "load"), ("torch", "save"), ("np", "load"), ("numpy", "load"), ("pd", "read_pickle")),
    *(("yaml", "load"), ("yaml", "unsafe_load"), ("yaml", "full_load")),
    *(("builtins", name) for name in FORBIDDEN_CALLS),
}
FORBIDDEN_METHODS = {"send_pyobj", "recv_pyobj"}  # pyzmq's, which pickle
SUBMODULES = ("torch.multiprocessing", "multiprocessing", "torch.package", "torch.serialization", "torch.hub")


def findings(source: str) -> list[str]:
    """What is forbidden in ``source``, with the line."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            pairs = {tuple(name.rsplit(".", 1)) for name in names if "." in name}
            found += [(node.lineno, f"{a}.{b}") for a, b in sorted(pairs & FORBIDDEN_ATTRIBUTES)]
        else:
            names = []
        for name in names:
            if name.split(".")[0] in FORBIDDEN_MODULES or name in SUBMODULES:
                found.append((node.lineno, f"import of {name}"))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            found.append((node.lineno, f"{node.func.id}()"))
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and (node.value.id, node.attr) in FORBIDDEN_ATTRIBUTES:
                found.append((node.lineno, f"{node.value.id}.{node.attr}"))
            if node.attr in FORBIDDEN_METHODS:
                found.append((node.lineno, node.attr))
        if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "trust_remote_code"):
            value = node.value.value if isinstance(node.value, ast.Constant) else None
            if value is not False:
                found.append((node.value.lineno, f"{node.arg} other than False"))
    return [f"line {line}: {what}" for line, what in found]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_runs_what_it_reads(path: Path) -> None:
    assert findings(path.read_text(encoding="utf-8")) == []


def test_there_are_files() -> None:
    assert len(FILES) > 100


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal as m",
        "import multiprocessing",
        "from torch import load",
        "torch.load('x')",
        "f = torch.load",
        "np.load('x', allow_pickle=True)",
        "thing(allow_pickle=flag)",
        "AutoModel(trust_remote_code=True)",
        "yaml.load(text)",
        "eval('1')",
        "exec(code)",
        "compile(s, 'f', 'exec')",
        "__import__('os')",
        "builtins.eval(x)",
        "socket.recv_pyobj()",
        "def f():\n    from dill import load",
    ],
)
def test_the_check_sees(source: str) -> None:
    assert findings(source) != []


@pytest.mark.parametrize(
    "source",
    [
        "re.compile('x')",
        "model.eval()",
        "json.load(f)",
        "yaml.safe_load(t)",
        "f(allow_pickle=False)",
        "x = 'eval(1)'",
    ],
)
def test_the_check_lets_pass(source: str) -> None:
    assert findings(source) == []
