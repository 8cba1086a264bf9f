"""Feeds each check of this folder an input that it must refuse, and one that it must accept."""

import sys

import banned_names
import folders
import same_names
import sentences
import tidy

ARCHITECTURE = """# House

| Folder | What it is | May use |
|---|---|---|
| `base` | not a rule: it stands above the heading | `net` |

## The map

| Folder | What it is | May use |
|---|---|---|
| `tokenyard` | the API | - |
| `base` | no rule either: `net` | `tokenyard` |
| `net` | sockets | `base`, `net/tcp/*` |
| `net/tcp` | streams | `tokenyard`, `base/clock.hpp` |
| `net/tcp/raw` | frames | `base` |

## Next

| `base` | not a rule: it stands under another heading | `net` |
"""

HEADERS = {
    "include/tokenyard/error.hpp": "",
    "src/base/clock.hpp": "",
    "src/base/hash.hpp": "",
    "src/net/link.hpp": "",
    "src/net/tcp/socket.hpp": "",
    "src/net/tcp/raw/frame.hpp": "",
}


def includes(name: str, *targets: str) -> list[str]:
    """Returns the complaints about one file that includes `targets`."""
    text = "".join(f'#include "{target}"\n' for target in targets)
    return folders.complaints({**HEADERS, name: text}, folders.parse(ARCHITECTURE))


def test_a_macro_has_the_prefix() -> None:
    """In src and include, but for the files that are listed with a reason."""
    text = "#if A\n#  define DEVICE\n#endif\n"
    assert tidy.complaints("src/device/a.hpp", text) == [
        "src/device/a.hpp:2: DEVICE here; use TOKENYARD_DEVICE"
    ]
    assert tidy.complaints("include/tokenyard/a.hpp", text)
    assert not tidy.complaints("tests/device/a.hpp", text)
    assert not tidy.complaints("src/device/a.hpp", text.replace("DEVICE", "TOKENYARD_DEVICE"))
    for name in tidy.MACROS_ALLOWED:
        assert not tidy.complaints(name, text)


def test_an_include_follows_the_table() -> None:
    """A file uses its own row, the rows it names, the rows below `x/*`, and single headers."""
    assert not includes("src/base/a.hpp", "tokenyard/error.hpp", "base/clock.hpp", "vector")
    assert not includes("src/net/a.cpp", "base/hash.hpp", "net/tcp/raw/frame.hpp", "link.hpp")
    assert not includes("src/net/tcp/a.cpp", "base/clock.hpp", "socket.hpp")

    upward = includes("src/base/a.hpp", "tokenyard/error.hpp", "net/link.hpp")
    assert len(upward) == 1
    assert upward[0].startswith("src/base/a.hpp:2: base may not use net/link.hpp")
    assert includes("src/net/a.cpp", "tokenyard/error.hpp")  # Not through base.
    assert includes("src/net/tcp/a.cpp", "base/hash.hpp")  # Another header of the folder.
    assert includes("src/net/tcp/a.cpp", "raw/frame.hpp")  # Found beside the file.
    assert includes("include/tokenyard/a.hpp", "base/clock.hpp")


def test_every_folder_has_a_row() -> None:
    """A new folder without a row is a complaint, and so is a page without the table."""
    assert includes("src/extra/a.hpp")[0].startswith("src/extra/a.hpp: its folder has no row")
    assert not includes("tests/extra/a.cpp", "base/clock.hpp")
    assert folders.complaints(HEADERS, folders.parse("# House\n"))


def test_rows_that_use_one_another_are_noted() -> None:
    """A circle among rows is told, and a row that governs nothing."""
    table = {"base": ["net"], "net": ["base"], "old": []}
    noted = folders.notes({"src/base/a.hpp": "", "src/net/a.hpp": ""}, table)
    assert noted == ["row old: it governs no file", "rows base and net use one another"]


ROW = ["Patience", "WaitContext", "^(src|tests)/"]


def test_a_banned_name_is_found() -> None:
    """Whole identifiers in code count; comments, strings and other files do not."""
    code = '// Patience\nauto text = "Patience"; int ImPatience, Patience_;\nPatience wait;\n'
    notes, found = banned_names.check({"src/a.hpp": code, "docs/a.py": "Patience"}, [ROW])
    assert found == ["src/a.hpp:3: Patience; say WaitContext"]
    assert not notes
    python = '"""Patience."""\nx = Patience()  # Patience\n'
    assert len(banned_names.check({"tests/a.py": python}, [ROW])[1]) == 1
    assert not banned_names.check({"tests/lint/a.py": python}, [ROW])[1]


def test_a_word_is_found_in_comments_and_strings() -> None:
    """A line marked `text` finds the word there and nowhere else."""
    code = 'Patience wait;\n/* a */ auto text = "Patience";  // No Patience.\n'
    found = banned_names.check({"src/a.hpp": code}, [[*ROW, "text"]])[1]
    assert found == ["src/a.hpp:2: Patience; say WaitContext"] * 2
    python = 'x = Patience()\n"""A\nPatience."""\n'
    found = banned_names.check({"tests/a.py": python}, [[*ROW, "text"]])[1]
    assert found == ["tests/a.py:3: Patience; say WaitContext"]


def test_a_pending_name_is_counted() -> None:
    """A pending name is no complaint; with nothing left, the mark may go."""
    pending = [[*ROW, "pending"]]
    notes, found = banned_names.check({"src/a.hpp": "Patience a, b; Patience c;"}, pending)
    assert not found
    assert len(notes) == 3
    assert notes[-1] == "1 of 1 names are pending, with 2 occurrences"
    notes, found = banned_names.check({"src/a.hpp": ""}, pending)
    assert not found
    assert notes[0].endswith("remove the mark")
    assert banned_names.check({}, [["Patience", "WaitContext", ".", "soon"]])[1]


def test_a_sentence_begins_with_a_noun() -> None:
    """Clauses are found in comments, docstrings and Markdown; questions and code are not."""

    def lines(name: str, text: str) -> list[int]:
        return [line for line, _ in sentences.clauses(name, text)]

    comment = "/// Frees it. What is left\n/// stays. Who\n/// waits?\nint a;  ///< who asked\n"
    assert lines("a.hpp", comment) == [1, 4]
    assert lines("a.hpp", "// The rank that\n// what it holds\nint who;\n/* Whoever reads */") == [
        4
    ]
    assert lines("a.py", '"""What it\nreturns."""\nx = "what"\n# Fine.\n# who reads\n') == [1, 5]
    page = "What is\nhere. Who is\nnot.\n\n```\nwhat\n```\n| what |\n- whatever is\n- Which?\n"
    assert lines("a.md", page) == [1, 2, 9]


def test_a_count_may_only_fall() -> None:
    """A folder above its budget fails, one below is told, and one without a budget has none."""
    places = {"src/a": ["x:1: What", "x:2: Who"]}
    assert sentences.check(places, {"src/a": 1})[1][-1].startswith("src/a: 2 sentences begin")
    assert sentences.check(places, {})[1]
    assert not sentences.check(places, {"src/a": 2})[1]
    notes, found = sentences.check(places, {"src/a": 3})
    assert not found
    assert notes[0].startswith("src/a: 2 of 3")


def test_a_name_stands_once_in_a_part() -> None:
    """Only listed folders may share a name; a header and its implementation are one."""
    names = ["src/net/a/mesh.hpp", "src/net/a/mesh.cpp", "src/net/b/mesh.hpp", "src/base/mesh.hpp"]
    assert same_names.check(names, [])[1][0].startswith("src/net: mesh stands in a, b")
    assert same_names.check(names, [["src/net", "a b", "link", "Link"]])[1]
    assert same_names.check(names, [["src/net", "a c", "*", "Link"]])[1]
    assert same_names.check(names, [["src/net", "a b", "mesh", "Link"]]) == ([], [])
    notes, found = same_names.check(
        names, [["src/net", "a b", "*", "pending"], ["src/x", "a", "*", "X"]]
    )
    assert not found
    assert len(notes) == 2
    assert not same_names.check(["src/net/mesh.hpp", "src/net/mesh.cpp"], [])[1]


def test_tidy_refuses() -> None:
    """Names that say nothing, long lines and banned words fail; a long file is a note."""
    assert tidy.complaints("src/a/string_utils.hpp", "")
    assert tidy.complaints("src/helpers/a.hpp", "")
    assert not tidy.complaints("src/expert_parallel/common/a.hpp", "")
    assert tidy.complaints("src/expert_parallel/common.hpp", "")
    assert tidy.complaints("src/a/a.hpp", "x" * 101)
    assert tidy.complaints("src/fabric/a.hpp", "int t = threadIdx.x;")
    assert not tidy.complaints("src/device/a.hpp", "int t = threadIdx.x;")
    assert tidy.complaints("python/a.py", "os.getenv()")
    long = "\n" * (tidy.LINES_HINT + 1)
    assert not tidy.complaints("src/a/a.hpp", long)
    assert tidy.long_file("src/a/a.hpp", long)
    assert not tidy.long_file("src/a/a.hpp", "\n" * tidy.LINES_HINT)


def main() -> int:
    """Runs every test of this file; returns 1 if one fails."""
    failed = 0
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    for name, test in tests:
        try:
            test()
        except AssertionError as error:
            failed += 1
            line = error.__traceback__.tb_next.tb_lineno if error.__traceback__.tb_next else 0
            print(f"{__file__}:{line}: {name} fails")
    print(f"self-test: {len(tests) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
