#!/usr/bin/env python3
"""Finds circles among the files of `arena-core` and `arena-scope`: files that use each other's names.

An edge is a path from `crate`, `super` or `self` in a file, followed through re-exports to the file that
defines the name. Re-exports themselves, comments and tests are no edges. The edges of
scripts/circles.allowed may close a circle, each for its reason. Any other circle makes the exit code 1,
and so does an entry that closes none. `--edges` lists all edges.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATES = ["arena-core", "arena-scope"]
# Comments, and strings and the character that would begin one.
NO_CODE = re.compile(r"""//[^\n]*|/\*.*?\*/|'"'|r#*".*?"#*|"(?:\\.|[^"\\])*["]""", re.S)
ALLOWED = ROOT / "scripts/circles.allowed"


def code_of(text):
    """The text without comments, strings and what is only compiled for tests; and the modules of tests."""
    text = NO_CODE.sub(" ", text)
    test_modules = set()
    while found := re.search(r"#\[cfg\((?:test|all\(test[^\]]*)\)\]", text):
        end = found.end()
        depth = 0
        while end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
            if depth == 0 and text[end - 1] in ";}":
                break
        item = text[found.end() : end]
        if module := re.search(r"\bmod\s+(\w+)\s*;", item):
            test_modules.add(module[1])
        text = text[: found.start()] + text[end:]
    return text, test_modules


def tree_paths(tree):
    """The paths of a `use` tree, each with the name that it gets."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        path, _, name = tree.partition(" as ")
        segments = [segment.strip() for segment in path.split("::")]
        name = name.strip() or segments[-1]
        if segments[-1] == "self" and len(segments) > 1:
            segments.pop()
            name = segments[-1]
        yield segments, name
        return
    head = [segment.strip() for segment in tree[:brace].split("::") if segment.strip()]
    depth, part = 0, ""
    for sign in tree[brace + 1 : tree.rfind("}")] + ",":
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            if part.strip():
                for segments, name in tree_paths(part):
                    own = segments == ["self"]
                    yield head + ([] if own else segments), (head[-1] if own and name == "self" else name)
            part = ""
        else:
            part += sign


class Crate:
    def __init__(self, name):
        self.source = ROOT / "crates" / name / "src"
        self.code, self.names = {}, {}
        tests = set()
        for file in sorted(self.source.rglob("*.rs")):
            module = self.module_of(file)
            code, test_modules = code_of(file.read_text())
            self.code[module] = code
            tests |= {module + (name,) for name in test_modules}
        self.code = {
            module: code
            for module, code in self.code.items()
            if not any(module[: len(test)] == test for test in tests)
        }
        for module, code in self.code.items():
            self.names[module] = {}
            for public, tree in re.findall(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", code):
                for segments, name in tree_paths(tree):
                    self.names[module].setdefault(name, []).append(segments)

    def module_of(self, file):
        parts = list(file.relative_to(self.source).with_suffix("").parts)
        if parts[-1] in ("mod", "lib", "main"):
            parts.pop()
        return tuple(parts)

    def file_of(self, module):
        for name in ("/".join(module) + ".rs", "/".join((*module, "mod.rs")), "lib.rs"):
            if (self.source / name).exists():
                return name
        raise KeyError(module)

    def resolve(self, module, segments, seen=frozenset()):
        """The file that defines a path seen from a module; `None` if it is of another crate."""
        if segments[0] == "crate":
            at = ()
        elif segments[0] == "self":
            at = module
        elif segments[0] == "super":
            at = module[:-1]
        elif module + (segments[0],) in self.code:
            at, segments = module, [None, *segments]
        else:
            return None
        for index, segment in enumerate(segments[1:], 1):
            if segment == "super":
                at = at[:-1]
            elif at + (segment,) in self.code:
                at += (segment,)
            else:
                for behind in self.names[at].get(segment, []):
                    if (at, segment) not in seen and behind != segments:
                        found = self.resolve(at, behind, seen | {(at, segment)})
                        if found is not None:
                            return found
                break
        return at

    def edges(self):
        """For each file the files that it uses."""
        edges = {}
        for module, code in self.code.items():
            used = set()
            uses = re.compile(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
            for public, tree in uses.findall(code):
                if not public:
                    used |= {self.resolve(module, segments) for segments, _ in tree_paths(tree)}
            for path in re.findall(r"\b(?:crate|super|self)(?:::\w+)+", uses.sub(" ", code)):
                used.add(self.resolve(module, path.split("::")))
            file = self.file_of(module)
            edges[file] = {self.file_of(other) for other in used if other is not None} - {file}
        return edges


def behind(edges, file):
    """All files that a file uses, if through others."""
    found, left = set(), [file]
    while left:
        for other in edges.get(left.pop(), ()):
            if other not in found:
                found.add(other)
                left.append(other)
    return found


def circles(edges):
    """The sets of files of which each uses each other, if through others."""
    reached = {file: behind(edges, file) for file in edges}
    found = {
        frozenset(other for other in reached[file] if file in reached[other])
        for file in edges
        if file in reached[file]
    }
    return sorted(found, key=sorted)


def allowed():
    """The edges that may close a circle: crate, file, and what it uses."""
    entries = []
    for number, line in enumerate(ALLOWED.read_text().splitlines(), 1):
        edge, _, reason = line.partition("#")
        if edge.strip():
            if not reason.strip() or len(edge.split()) != 3:
                sys.exit(f"{ALLOWED.name}:{number}: CRATE FILE USED-FILE # REASON")
            entries.append(edge.split())
    return entries


def main():
    entries, failed = allowed(), False
    for crate in CRATES:
        edges = Crate(crate).edges()
        if "--edges" in sys.argv[1:]:
            for file, others in sorted(edges.items()):
                print(f"{crate} {file}: {' '.join(sorted(others))}")
        own = [(file, used) for name, file, used in entries if name == crate]
        closing = {edge for edge in own if edge[1] in edges.get(edge[0], ())}
        for file, used in closing:
            edges[file].remove(used)
        for file, used in own:
            if (file, used) not in closing or file not in behind(edges, used):
                failed = True
                print(f"closes no circle, so take it off {ALLOWED.name}: {crate} {file} {used}")
        for circle in circles(edges):
            failed = True
            print(f"a circle in {crate}: {' '.join(sorted(circle))}")
            for file in sorted(circle):
                print(f"    {file} uses {' '.join(sorted(edges[file] & circle))}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
