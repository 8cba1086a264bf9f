"""Finds the mutants of Python files, with the standard library's parser."""

import ast
import itertools
import re
from collections.abc import Iterator

from schemata import Change, shown

LONGEST = 500

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: ">=", ast.NotEq: "<", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
EPOCHS = re.compile(r"(^|_)(epoch|parity|sequence|generation|ballot|run|batch)$")
CHECKS = re.compile(r"^_?(require|check|expect|ensure|verify|validate|refuse)(_|$)")
RELEASES = re.compile(
    r"^_?(close|release|free|reset|unlock|clear|unlink|cancel|shutdown|detach|stop|join|remove"
    r"|forget|destroy|pop|terminate|kill|unregister)(_|$)"
)
ANNOTATIONS = ("annotation", "returns", "type_params", "decorator_list", "bases", "keywords")


class _Scan:
    def __init__(self, text: bytes) -> None:
        self.text = text
        self.changes: set[Change] = set()
        self._lines = [0]
        for line in text.split(b"\n"):
            self._lines.append(self._lines[-1] + len(line) + 1)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Returns the bytes of a node."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._lines[node.lineno - 1] + node.col_offset,
            self._lines[node.end_lineno - 1] + node.end_col_offset,
        )

    def source(self, node: ast.expr | ast.stmt) -> str:
        """Returns the text of a node."""
        start, end = self.span(node)
        return self.text[start:end].decode()

    def add(
        self, node: ast.expr | ast.stmt, operator: str, form: str, text: str, what: str
    ) -> None:
        """Adds a change of a node."""
        start, end = self.span(node)
        self.changes.add(Change(start, end, operator, form, text, what))

    def choice(self, node: ast.expr, operator: str, text: str, what: str = "") -> None:
        """Adds a change that writes the expression a second time."""
        original = self.source(node)
        # Within an f-string quotes may not be repeated; and a walrus binds its name once.
        if len(original) <= LONGEST and ":=" not in original:
            self.add(node, operator, "choice", text, what or f"{shown(original)} -> {shown(text)}")

    # ---- what is looked at ----

    def body(self, statements: list[ast.stmt], leave: bool, failing: bool, generator: bool) -> None:
        """Looks at the statements of a block within a function."""
        for number, statement in enumerate(statements):
            docstring = isinstance(statement, ast.Expr) and isinstance(
                statement.value, ast.Constant
            )
            if leave and number > 0 and not docstring and self._begins_line(statement):
                before = shown(self.source(statement).split("\n")[0], 40)
                indent = " " * statement.col_offset
                self.add(
                    statement,
                    "return",
                    "around",
                    f"if @: return\n{indent}\0",
                    f"return before {before}",
                )
            if not docstring:
                self.statement(statement, leave, failing, generator)

    def _begins_line(self, statement: ast.stmt) -> bool:
        if getattr(statement, "decorator_list", None):
            return False
        start = self.span(statement)[0]
        line = self.text.rfind(b"\n", 0, start) + 1
        return not self.text[line:start].strip()

    def statement(self, node: ast.stmt, leave: bool, failing: bool, generator: bool) -> None:
        """Looks at one statement."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self.scope(node)
            return
        if isinstance(
            node, (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.Break, ast.Continue)
        ):
            self._drop(node, failing)
        if isinstance(node, ast.If):
            self._condition(node)
        elif isinstance(node, ast.For) and node.body:
            self._first_turn(node)
        for field, value in ast.iter_fields(node):
            if field in ANNOTATIONS:
                continue
            values = value if isinstance(value, list) else [value]
            block = bool(values) and isinstance(values[0], ast.stmt)
            if block:
                fails = failing or (isinstance(node, ast.If) and _raises(values))
                self.body(values, leave, fails, generator)
                continue
            for child in values:
                if isinstance(child, ast.ExceptHandler):
                    self.body(child.body, leave, True, generator)
                elif isinstance(child, ast.withitem):
                    self.expression(child.context_expr)
                elif isinstance(child, ast.match_case):
                    self.body(child.body, leave, failing, generator)
                elif isinstance(child, ast.expr):
                    self.expression(child)

    def _drop(self, node: ast.stmt, failing: bool) -> None:
        if not self._begins_line(node):
            return
        name = ""
        if isinstance(node, ast.Expr):
            if not isinstance(node.value, (ast.Call, ast.Await)):
                return
            call = node.value.value if isinstance(node.value, ast.Await) else node.value
            if isinstance(call, ast.Call):
                name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        # A name that is never bound is caught by anything that reads it.
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) for t in node.targets):
            return
        operator = "statement"
        if CHECKS.match(name):
            operator = "check"
        elif RELEASES.match(name) or isinstance(node, ast.Delete) or (failing and name):
            operator = "release"
        self.add(node, operator, "around", "if not @: \0", f"{shown(self.source(node))} -> nothing")

    def _condition(self, node: ast.If) -> None:
        text = shown(self.source(node.test))
        if ":=" in text:
            return
        self.add(node.test, "condition", "around", "(bool(\0) != @)", f"{text} -> inverted")
        if node.body and isinstance(node.body[0], ast.Raise):
            self.add(
                node.test, "check", "around", "(not @ and (\0))", f"if {text}: raise -> not checked"
            )
        else:
            self.add(node.test, "condition", "around", "(@ or (\0))", f"{text} -> True")

    def _first_turn(self, node: ast.For) -> None:
        last = node.body[-1]
        if not self._begins_line(last) or isinstance(last, (ast.Return, ast.Raise, ast.Break)):
            return
        indent = " " * last.col_offset
        text = shown(f"for {self.source(node.target)} in {self.source(node.iter)}")
        self.add(
            last, "bound", "around", f"\0\n{indent}if @: break", f"{text} -> its first turn only"
        )

    def expression(self, node: ast.expr) -> None:
        """Looks at an expression and all in it."""
        if isinstance(node, ast.JoinedStr):
            return  # Text for a reader.
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            word = COMPARISONS[type(node.ops[0])]
            left, right = self.source(node.left), self.source(node.comparators[0])
            self.choice(node, "compare", f"({left}) {word} ({right})",
                        f"{shown(self.source(node))} -> {word}")  # fmt: skip
        elif isinstance(node, ast.Compare):
            for number in range(len(node.ops)):
                self._chain(node, number)
        elif isinstance(node, ast.BoolOp):
            for number, value in enumerate(node.values):
                others = [self.source(v) for at, v in enumerate(node.values) if at != number]
                word = " and " if isinstance(node.op, ast.And) else " or "
                self.choice(node, "term", word.join(f"({other})" for other in others),
                            f"{word.strip()} {shown(self.source(value))} -> left out")  # fmt: skip
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            self.choice(node, "constant", str(node.value + 1))
            if node.value > 0:
                self.choice(node, "constant", str(node.value - 1))
        elif isinstance(node, ast.IfExp):
            text = shown(self.source(node.test))
            self.add(node.test, "condition", "around", "(bool(\0) != @)", f"{text} -> inverted")
        elif isinstance(node, ast.Call):
            self._swap(node)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if EPOCHS.search(name):
                text = self.source(node)
                if "parity" in name:
                    self.choice(node, "epoch", f"({text}) ^ 1")
                else:
                    self.choice(node, "epoch", f"({text}) - 1")
        if isinstance(node, ast.Lambda):
            self.expression(node.body)
            return
        for child in _expressions(node):
            self.expression(child)

    def _chain(self, node: ast.Compare, number: int) -> None:
        """Changes one comparison of `a <= b < c`."""
        terms = [node.left, *node.comparators]
        words = [_WORDS[type(op)] for op in node.ops]
        words[number] = COMPARISONS[type(node.ops[number])]
        text = f"({self.source(terms[0])})"
        for word, term in zip(words, terms[1:], strict=True):
            text += f" {word} ({self.source(term)})"
        self.choice(node, "compare", text)

    def _swap(self, node: ast.Call) -> None:
        """Swaps neighbours that look alike: Python's arguments have no types here."""
        for one, other in itertools.pairwise(node.args):
            if type(one) is not type(other) or not isinstance(one, (ast.Name, ast.Attribute)):
                continue
            a, b = self.source(one), self.source(other)
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if a == b or name in (
                "min",
                "max",
                "isinstance",
                "cast",
                "getattr",
                "hasattr",
                "issubclass",
            ):
                continue
            start, _ = self.span(node)
            (s1, e1), (s2, e2) = self.span(one), self.span(other)
            text = self.source(node).encode()
            changed = (
                text[: s1 - start]
                + b.encode()
                + text[e1 - start : s2 - start]
                + a.encode()
                + text[e2 - start :]
            )
            self.choice(node, "swap", changed.decode(), f"{name}: {a}, {b} -> swapped")

    def scope(self, node: ast.AST) -> None:
        """Looks for functions in a module or a class; and into a function."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            abstract = any(
                "overload" in ast.dump(d) or "abstract" in ast.dump(d) for d in node.decorator_list
            )
            if not abstract:
                generator = any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(node))
                self.body(node.body, not generator, False, generator)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.stmt):
                self.scope(child)


_WORDS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.keyword):
            yield child.value
        elif isinstance(child, ast.comprehension):
            yield child.iter
            yield from child.ifs


def _raises(statements: list[ast.stmt]) -> bool:
    return any(isinstance(statement, ast.Raise) for statement in statements)


def scan(text: str) -> list[Change]:
    """Returns the changes of a module."""
    found = _Scan(text.encode())
    found.scope(ast.parse(text))
    return sorted(found.changes)
