"""A table as LaTeX that pdflatex takes whatever the names in it, and that fits its page."""

from __future__ import annotations

import re
from itertools import groupby
from textwrap import wrap

from prism_transformer.core.table import DASH, MINUS, NONE, PLUS_MINUS, Column, Table

PACKAGES = "array,booktabs,graphicx"
MOST_ROWS = 30  # on a page; a longer table goes over several
WIDEST_HEADING = 12  # signs in a line of a heading
WIDEST_WORDS = 24  # signs in a line of a cell of words

SIGNS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    PLUS_MINUS: r"$\pm$", MINUS: "$-$", DASH: "--", "\u00d7": r"$\times$", "\u00b5": r"$\mu$",
    "\u2192": r"$\to$", "\u2248": r"$\approx$", "\u2264": r"$\le$", "\u2265": r"$\ge$",
    "\u221e": r"$\infty$",
}  # fmt: skip
GREEK = {
    "\u0393": "Gamma", "\u0394": "Delta", "\u0398": "Theta", "\u039b": "Lambda", "\u03a3": "Sigma",
    "\u03a6": "Phi", "\u03a8": "Psi", "\u03a9": "Omega", "\u03b1": "alpha", "\u03b2": "beta",
    "\u03b3": "gamma", "\u03b4": "delta", "\u03b5": "epsilon", "\u03b7": "eta", "\u03b8": "theta",
    "\u03ba": "kappa", "\u03bb": "lambda", "\u03bc": "mu", "\u03bd": "nu", "\u03c0": "pi",
    "\u03c1": "rho", "\u03c3": "sigma", "\u03c4": "tau", "\u03c6": "phi", "\u03c7": "chi",
    "\u03c8": "psi", "\u03c9": "omega",
}  # fmt: skip
KNOWN = SIGNS | {letter: rf"$\{name}$" for letter, name in GREEK.items()}
# Letters that pdflatex has by itself with the T1 encoding: Latin, and typographic marks.
PLAIN = re.compile(
    r"[\x20-\x7e\u00a1-\u0125\u0128-\u0137\u0139-\u013e\u0141-\u0148\u014a-\u0165\u0168-\u017e"
    r"\u2013\u2014\u2018-\u201a\u201c-\u201e\u2020-\u2022\u2026]"
)
LIGATURE = re.compile(r"(?<=[-'`,!?])(?=[-'`,])")  # such as --, which would become a dash


def to_latex(table: Table) -> str:
    """A table for a paper, with caption and label; above it the packages that it needs."""
    lines = [
        rf"% \usepackage{{{PACKAGES}}}",
        r"% \usepackage[T1]{fontenc}",
        r"% As wide as the text at most: in table* or sidewaystable it is set larger.",
        f"% made by {' '.join(table.command.split())}",
    ]
    caption = rf"\caption{{{_words(table.title)}. {_words(table.note)}}}"
    title = [caption, rf"\label{{tab:{table.key}}}"]
    if table.missing:
        lines += _float([*title, rf"\emph{{Not measured: {_words(table.missing)}}}"])
    else:
        kinds, heading, rows = _cells(table)
        for first in range(0, len(rows), MOST_ROWS):
            lines += _float([*title, *_tabular(kinds, heading, rows[first : first + MOST_ROWS])])
            again = rf"\caption{{{_words(table.title)}, continued.}}"
            title = [r"\addtocounter{table}{-1}", again]
    return "\n".join(lines) + "\n"


def _float(lines: list[str]) -> list[str]:
    return [r"\begin{table}", r"\centering", *lines, r"\end{table}"]


def _tabular(kinds: str, heading: str, rows: list[str]) -> list[str]:
    """As large as it is, or as wide as the text where it is wider."""
    return [
        r"\footnotesize\setlength{\tabcolsep}{3pt}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", heading, r"\midrule", *rows,
        r"\bottomrule", r"\end{tabular}}",
    ]  # fmt: skip


def _cells(table: Table) -> tuple[str, str, list[str]]:
    """Kinds of columns, headings and rows; columns that are empty throughout are left out."""
    texts = {
        column: [column.text(each) for each in table.values(column.key)] for column in table.columns
    }
    kept = {column: each for column, each in texts.items() if set(each) != {NONE}}
    kinds = "".join(_kind(column, each) for column, each in kept.items())
    heading = " & ".join(map(_heading, kept)) + r" \\"
    rows = [" & ".join(map(_words, row)) for row in zip(*kept.values(), strict=True)]
    # A row that begins so would be read as an option of the line break before it.
    safe = ["{}" + row if row.startswith(("[", "*")) else row for row in rows]
    return kinds, heading, [row + r" \\" for row in safe]


def _kind(column: Column, texts: list[str]) -> str:
    """How a column is set: long words in several lines where there is a place to break them."""
    if column.numeric:
        return "r"
    longest = max(map(len, texts))
    unbroken = max((len(word) for text in texts for word in text.split()), default=0)
    if longest <= WIDEST_WORDS or unbroken > WIDEST_WORDS:
        return "l"
    return rf">{{\raggedright\arraybackslash}}p{{{WIDEST_WORDS // 2}em}}"


def _heading(column: Column) -> str:
    """Name and unit below each other: numbers are narrower than what they are called."""
    unit = [f"[{column.unit}]"] if column.unit else []
    name = wrap(column.label, WIDEST_HEADING, break_long_words=False, break_on_hyphens=False)
    lines = [_words(line) for line in (*name, *unit)]
    if len(lines) == 1:
        return lines[0]
    # In braces: a bracket would be read as an option of the line break before it.
    stack = r"\\".join(f"{{{line}}}" for line in lines)
    return rf"\shortstack[{'r' if column.numeric else 'l'}]{{{stack}}}"


def _words(words: str) -> str:
    """Words as LaTeX, whatever they contain."""
    shown = (letter for letter in " ".join(words.split()) if letter.isprintable())
    return "".join(_letters(known, "".join(run)) for known, run in groupby(shown, _is_known))


def _is_known(letter: str) -> bool:
    return letter in KNOWN or PLAIN.fullmatch(letter) is not None


def _letters(known: bool, run: str) -> str:
    """What pdflatex cannot set stands there by its code; engines that read Unicode set it."""
    if known:
        return "".join(KNOWN.get(letter, letter) for letter in LIGATURE.sub("\0", run)).replace(
            "\0", "{}"
        )
    codes = " ".join(f"U+{ord(letter):04X}" for letter in run)
    return rf"\ifdefined\Umathchar {run}\else {codes}\fi{{}}"
