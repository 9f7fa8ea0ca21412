"""Style and architecture as tests: what may import what, what is pure, how large things may get.

What the parts are is in docs/architecture.md, "The parts, and which may import which". The tests
read the source with `ast` and run nothing, so that this file is fast and needs no part to work. A
rule that makes a piece of code worse may be broken on purpose: its exception stands in a table
(`tests/tidy_tables.py`), with the reason.

Sizes are questions. A file beyond 600 lines, a function beyond 60, a class beyond 250 lines of
code (without docstrings, comments and blank lines) and a function of more than 7 parameters ask
whether this is still one thing. Where it is, it stays, and `SIZES_ALLOWED` says why. Calls of the
logger do not count. A parameter that may be given only by name and has a default is an option and
does not count. A line has at most 100 columns.

No literal is bent for the counters or the formatter: one that is spread into another, as in
`[*("a", "b")]`, is refused.
"""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path

from tests.tidy_tables import (
    ASYNC_ALLOWED,
    CLOCK_ALLOWED,
    CLOCK_AND_RANDOM_FREE,
    MAY_IMPORT,
    NOT_IN_PURE,
    PROTOCOL_LIBRARIES,
    PURE,
    RANDOM_ALLOWED,
    SIZES_ALLOWED,
    THREADS_ALLOWED,
)

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("audit", "broker", "cli", "client", "package", "protocol", "testing")
NOT_OURS = {"build", "dist", "__pycache__", "minibroker.egg-info"}

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
CLASS_CODE_LINES_MAX = 250
PARAMETERS_MAX = 7
COLUMNS_MAX = 100
LOGGERS = {"log", "logger"}
QUESTION = "is it still one thing? If so, say why in SIZES_ALLOWED"

BANNED_WORD = re.compile(
    r"\b(?:TO[D]O|FIX[M]E|XX[X]|NotImplemented[E]rror|pytest\.ski[p]|xfai[l])\b"
)
# Directories that name one machine; a path under /tmp/minibroker is an example in a text.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:tmp|root|home|Users)/(?!minibroker)\w")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".sh", ".cfg", ".json", ".html"}


def walk(directory: Path) -> Iterator[Path]:
    """Every file of this project below a directory, in a fixed order."""
    for path in sorted(directory.iterdir()):
        hidden = path.name.startswith(".") and path.name != ".ci"
        if path.is_dir() and not hidden and path.name not in NOT_OURS:
            yield from walk(path)
        elif path.is_file():
            yield path


def name_of(path: Path) -> str:
    """The path as it is written in the tables above."""
    return path.relative_to(ROOT).as_posix()


ALL_FILES = [name_of(path) for path in walk(ROOT)]
TEXTS = [
    name
    for name in ALL_FILES
    if Path(name).suffix in TEXT_SUFFIXES or name in {"Makefile", ".ci/run"}
]
SOURCES = [name for name in ALL_FILES if name.endswith(".py")]
PRODUCT = [name for name in SOURCES if name.split("/")[0] in PARTS]
PURE_SOURCES = [name for name in PRODUCT if name.startswith(tuple(PURE))]
TESTS = [name for name in SOURCES if Path(name).name.startswith("test_")]


@cache
def text_of(name: str) -> str:
    """A file's text."""
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def nodes_of(name: str) -> list[ast.AST]:
    """Every node of a source file's syntax tree, the module first."""
    return list(ast.walk(ast.parse(text_of(name), name)))


def module_of(name: str) -> str:
    """`broker/log/log.py` is `broker.log.log`."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_of(name: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports, at its head or inside a function."""
    for node in nodes_of(name):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: imports name the whole path"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def is_under(module: str, prefix: str) -> bool:
    """Whether a module is the named one or lies in it."""
    return module == prefix or module.startswith(prefix + ".")


def functions_of(name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file, nested ones too."""
    for node in nodes_of(name):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def dotted(node: ast.AST) -> str:
    """`a.b.c` as text where a node is that, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def uses_of(name: str) -> Iterator[tuple[int, str]]:
    """Line and text of every `a.b` in a file's code."""
    for node in nodes_of(name):
        if isinstance(node, ast.Attribute) and (text := dotted(node)):
            yield node.lineno, text


Problem = tuple[int, str]  # a line of a file, and what is wrong there


def of_each(names: Sequence[str]) -> Callable[[Callable[[str], list[Problem]]], Callable[[], None]]:
    """A rule that holds for each of these files, as one test: a test a file would be thousands,
    which take longer than what they test. It fails with one clickable line for each problem."""

    def as_test(problems_of: Callable[[str], list[Problem]]) -> Callable[[], None]:
        def test() -> None:
            lines = [
                f"{name}:{line}: {text}"
                for name in names
                for line, text in sorted(problems_of(name))
            ]
            assert not lines, "\n" + "\n".join(lines)

        test.__name__, test.__doc__ = problems_of.__name__, problems_of.__doc__
        return test

    return as_test


@of_each(PRODUCT)
def test_imports_follow_the_direction_of_the_architecture(name: str) -> list[Problem]:
    """A part imports only what stands below it."""
    module = module_of(name)
    layer = max((layer for layer in MAY_IMPORT if is_under(module, layer)), key=len)
    allowed = MAY_IMPORT[layer].split()
    problems = []
    for line, imported in imports_of(name):
        top = imported.split(".")[0]
        if top in PARTS:
            problems.append((line, f"import minibroker.{imported}, not {imported}"))
        if layer == "protocol" and top not in PROTOCOL_LIBRARIES:
            problems.append((line, f"the protocol may not use {imported}"))
        if top != "minibroker":
            continue
        target = imported.removeprefix("minibroker.")
        if not any(is_under(target, prefix) for prefix in allowed):
            problems.append((line, f"{module} may not import {target}; it may: {allowed}"))
    return problems


@of_each(tuple(PURE))
def test_pure_modules_exist(entry: str) -> list[Problem]:
    """A file that the table of pure modules names is there, so that the table stays true."""
    return [] if (ROOT / entry).exists() else [(1, "listed in PURE, but there is no such file")]


@of_each(PURE_SOURCES)
def test_pure_modules_are_pure(name: str) -> list[Problem]:
    """A pure module never waits; time and chance are arguments, bytes reach it from outside."""
    waiting = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    problems = [
        (node.lineno, "a pure module has no async")
        for node in nodes_of(name)
        if isinstance(node, waiting) and (name, getattr(node, "name", "")) not in ASYNC_ALLOWED
    ]
    problems += [
        (line, f"a pure module may not import {imported}")
        for line, imported in imports_of(name)
        if imported.split(".")[0] in NOT_IN_PURE
    ]
    return problems


@of_each([n for n in PRODUCT if n.startswith(CLOCK_AND_RANDOM_FREE)])
def test_clock_and_randomness_are_arguments(name: str) -> list[Problem]:
    """Only the composition roots read a real clock or make a random generator."""
    clocks = {"time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns"}
    clocks |= {"time.perf_counter", "datetime.now", "datetime.datetime.now", "datetime.utcnow"}
    chance = re.compile(r"random\.(?!Random$)\w+|secrets\.\w+|uuid\.uuid[14]|os\.urandom")
    problems = []
    for line, text in uses_of(name):
        if text in clocks and not name.startswith(tuple(CLOCK_ALLOWED)):
            problems.append((line, f"{text}: the clock is an argument"))
        if chance.fullmatch(text):
            problems.append((line, f"{text}: use the random.Random that was handed in"))
    for node in nodes_of(name):
        # `Random(seed)` is as repeatable as its seed; `Random()` asks the system.
        is_unseeded = isinstance(node, ast.Call) and not node.args
        is_generator = is_unseeded and dotted(node.func) in {"random.Random", "Random"}
        if is_generator and name not in RANDOM_ALLOWED:
            problems.append((node.lineno, "an unseeded generator is made by the caller"))
        if isinstance(node, ast.ImportFrom) and node.module in {"random", "time", "secrets"}:
            names = {alias.name for alias in node.names} - {"Random"}
            if names and not name.startswith(tuple(CLOCK_ALLOWED)):
                problems.append((node.lineno, f"from {node.module} import {sorted(names)}"))
    return problems


@of_each(PRODUCT)
def test_only_named_files_leave_the_loop(name: str) -> list[Problem]:
    """Threads are started where the table says so, and nowhere else."""
    if name.startswith(("cli/", *THREADS_ALLOWED)):
        return []
    return [
        (line, f"{text}: take `in_worker` as an argument")
        for line, text in chain(uses_of(name), imports_of(name))
        if "to_thread" in text.split(".") or text.split(".")[0] in {"threading", "concurrent"}
    ]


def logger_lines(node: ast.AST) -> set[int]:
    """The lines that calls of a logger take, inside a function or class."""
    return {
        line
        for inner in ast.walk(node)
        if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call)
        if dotted(inner.value.func).split(".")[0] in LOGGERS
        for line in range(inner.lineno, (inner.end_lineno or inner.lineno) + 1)
    }


def code_lines(node: ast.ClassDef, text: str) -> int:
    """Lines of a class without docstrings, comments, calls of the logger and blank lines."""
    assert node.end_lineno
    code = {
        number
        for number, line in enumerate(text.splitlines()[: node.end_lineno], 1)
        if number >= node.lineno and line.strip() and not line.strip().startswith("#")
    }
    for inner in ast.walk(node):
        if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant):
            code -= set(range(inner.lineno, (inner.end_lineno or inner.lineno) + 1))
    return len(code - logger_lines(node))


@of_each(SOURCES)
def test_sizes_stay_within_their_limits(name: str) -> list[Problem]:
    """What grows beyond its limit is asked whether it is two things."""
    lines = text_of(name).splitlines()
    problems = [
        (number, f"{len(line)} columns, at most {COLUMNS_MAX}")
        for number, line in enumerate(lines, 1)
        if len(line) > COLUMNS_MAX
    ]
    if len(lines) > FILE_LINES_MAX and name not in SIZES_ALLOWED:
        problems.append((1, f"{len(lines)} lines, more than {FILE_LINES_MAX}: {QUESTION}"))
    for node in nodes_of(name):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            length -= len(logger_lines(node))
            if length > FUNCTION_LINES_MAX and f"{name}:{node.name}" not in SIZES_ALLOWED:
                text = f"{node.name} has {length} lines, more than {FUNCTION_LINES_MAX}: {QUESTION}"
                problems.append((node.lineno, text))
        if isinstance(node, ast.ClassDef):
            length = code_lines(node, text_of(name))
            if length > CLASS_CODE_LINES_MAX and f"{name}:{node.name}" not in SIZES_ALLOWED:
                text = f"{node.name} has {length} lines of code, more than {CLASS_CODE_LINES_MAX}"
                problems.append((node.lineno, f"{text}: {QUESTION}"))
    return problems


@of_each(SOURCES)
def test_literals_are_not_bent(name: str) -> list[Problem]:
    """What stands in a list or a call is written there, not as another literal that is spread."""
    displays = (ast.Tuple, ast.List, ast.Set)
    return [
        (each.lineno, "a literal spread into another: write it out")
        for node in nodes_of(name)
        for each in (node.args if isinstance(node, ast.Call) else getattr(node, "elts", []))
        if isinstance(each, ast.Starred) and isinstance(each.value, displays)
    ]


@of_each(PRODUCT)
def test_functions_take_few_parameters(name: str) -> list[Problem]:
    """A function of many parameters is asked whether some of them are one object."""
    problems = []
    for function in functions_of(name):
        given = function.args
        counted = [argument.arg for argument in given.posonlyargs + given.args]
        counted = [argument for argument in counted if argument not in {"self", "cls"}]
        counted += [
            argument.arg
            for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
            if default is None
        ]
        is_allowed = f"{name}:{function.name}" in SIZES_ALLOWED
        if len(counted) > PARAMETERS_MAX and not is_allowed:
            text = f"{function.name} takes {len(counted)} parameters, more than {PARAMETERS_MAX}"
            problems.append((function.lineno, f"{text}: {QUESTION}"))
    return problems


@of_each([name for name in SOURCES if text_of(name).strip()])
def test_modules_begin_with_what_they_are(name: str) -> list[Problem]:
    """A module's docstring says what it owns."""
    tree = nodes_of(name)[0]
    assert isinstance(tree, ast.Module)
    return [] if ast.get_docstring(tree) else [(1, "begin with what this module owns, and why so")]


@of_each(TESTS)
def test_tests_say_what_must_hold(name: str) -> list[Problem]:
    """Each test has one sentence that a reader of a failure can trust."""
    return [
        (function.lineno, f"{function.name} does not say what must hold")
        for function in functions_of(name)
        if function.name.startswith("test_") and not ast.get_docstring(function)
    ]


@of_each(TEXTS)
def test_texts_name_no_machine_and_leave_nothing_open(name: str) -> list[Problem]:
    """No path of somebody's machine, no note to self."""
    problems = []
    for number, line in enumerate(text_of(name).splitlines(), 1):
        if match := BANNED_WORD.search(line):
            problems.append((number, f"{match.group()}: do it, or write an issue"))
        if match := MACHINE_PATH.search(line):
            problems.append((number, f"{match.group()}...: a path of one machine"))
    return problems


def test_every_package_is_installed() -> None:
    """A package that pyproject.toml does not list works in the tree and is missing in a wheel."""
    project = tomllib.loads(text_of("pyproject.toml"))["tool"]["setuptools"]
    listed = set(project["packages"])
    found = {installed_name(str(Path(name).parent)) for name in PRODUCT}
    assert listed == found, f"packages: only listed {listed - found}, only found {found - listed}"
    folders = {name.split("/")[0] for name in PRODUCT}
    assert project["package-dir"] == {installed_name(folder): folder for folder in folders}
    for folder in {str(Path(name).parent) for name in PRODUCT}:
        assert f"{folder}/__init__.py" in SOURCES, f"{folder}: has no __init__.py"
    assert "package/py.typed" in ALL_FILES


def installed_name(folder: str) -> str:
    """The package that a folder of the tree is installed as."""
    if folder == "package":
        return "minibroker"
    return "minibroker." + folder.replace("/", ".")
