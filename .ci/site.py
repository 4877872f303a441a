"""Checks the links of every Markdown file in the repository, and lays out the pages of the site.

`site.py check` prints each relative link whose file is not in the repository, or whose heading is not in that file.
`site.py pages FOLDER` copies the pages and what they link to into FOLDER, for mkdocs (.ci/site.yml). Their links stay as they are.
Never looks at an address on the network.
"""

import functools
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys
import urllib.parse

FENCE = re.compile(r"^ {0,3}(```+|~~~+)(.*)$")
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
HEADING = re.compile(r"^ {0,3}#{1,6} +(.*?)(?: +#+)? *$")
# `[text](target "title")`, `![…](…)`, `[name]: target`, and HTML.
LINK = re.compile(r"\]\(\s*<?([^\s()<>]+)>?(?:\s+[\"'][^\"']*[\"'])?\s*\)|^ {0,3}\[[^\]]+\]:\s*(\S+)|(?:href|src)=\"([^\"]+)\"", re.MULTILINE)
ANCHOR = re.compile(r"<[a-z]+ [^>]*\b(?:id|name)=\"([^\"]+)\"")
# Files that `sealwire init` writes into a project of its own: their links lead nowhere here.
TEMPLATES = "crates/cli/src/init/"


@functools.cache
def files():
    """The files of the repository."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], check=True, stdout=subprocess.PIPE, text=True)
    return frozenset(name for name in listed.stdout.split("\0") if name and pathlib.Path(name).exists())


def folders():
    return {posixpath.normpath(str(folder)) for name in files() for folder in pathlib.PurePosixPath(name).parents}


def prose(text):
    """The text without blocks of code; each of their lines stays as an empty one."""
    lines, fence = [], None
    for line in text.splitlines():
        found = FENCE.match(line)
        if found and fence is None:
            fence = found[1]
        elif found and found[1].startswith(fence) and not found[2].strip():
            fence = None
        elif fence is None:
            lines.append(line)
            continue
        lines.append("")
    return "\n".join(lines)


@functools.cache
def anchors(name):
    """The anchors of a page, as GitHub makes them from its headings, and those that it names itself."""
    text = prose(pathlib.Path(name).read_text())
    found, seen = set(ANCHOR.findall(text)), {}
    for line in text.splitlines():
        if heading := HEADING.match(line):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            count = seen[slug] = seen.get(slug, -1) + 1
            found.add(f"{slug}-{count}" if count else slug)
    return found


def links(name):
    """Each relative link of a page: its line, the file or folder that it leads to, and the anchor there."""
    text = prose(pathlib.Path(name).read_text())
    text = CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)
    for link in LINK.finditer(text):
        target = next(group for group in link.groups() if group)
        # With a scheme, it leads into the network; with `::`, rustdoc checks it.
        if re.match(r"[a-z][a-z+.-]*:", target) or "::" in target:
            continue
        path, _, anchor = urllib.parse.unquote(target).partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
        yield text.count("\n", 0, link.start()) + 1, target, there, anchor


def pages():
    return sorted(name for name in files() if name.endswith(".md") and not name.startswith(TEMPLATES))


def check():
    """Returns what is wrong with the links of all pages."""
    wrong, count = [], 0
    for name in pages():
        for line, target, there, anchor in links(name):
            count += 1
            if there not in files() and there not in folders():
                wrong.append(f"{name}:{line}: {target}: there is no {there}")
            elif anchor and anchor not in (anchors(there) if there.endswith(".md") else ()):
                wrong.append(f"{name}:{line}: {target}: {there} has no heading for #{anchor}")
    print(f"{count} links of {len(pages())} pages, {len(wrong)} broken", *wrong, sep="\n")
    return wrong


def fence_for_site(line):
    """A fence that the site's Markdown knows: what follows the language becomes the block's title."""
    found = re.match(r"^```([a-z]+)(?:,\w+| terminal)$", line)
    if found:
        return f"```{found[1]}"
    return re.sub(r"^```(\w+) (\S+)$", r'```\1 title="\2"', line)


def lay_out(folder):
    """Copies the pages for readers, and the files that they link to. """
    chosen = [name for name in pages() if "/" not in name or name.startswith(("bindings/", "docs/", "examples/", "tests/"))]
    # A link to a page in code leads to its text.
    linked = {there for name in chosen for _, _, there, _ in links(name) if there in files()}
    for name in {*chosen, *linked}:
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if name in chosen:
            copy.write_text("".join(f"{fence_for_site(line)}\n" for line in pathlib.Path(name).read_text().splitlines()))
        else:
            shutil.copyfile(name, copy)
    # Blocks of code have lines of 100 characters.
    (folder / "site.css").write_text(".md-grid { max-width: 80rem }\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["check"]:
            sys.exit(1 if check() else 0)
        case ["pages", folder]:
            lay_out(pathlib.Path(folder))
        case _:
            sys.exit(__doc__)
