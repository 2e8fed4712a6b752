"""A picture as SVG within a page: colours that follow the page, marks that answer to hovering."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.figure import Figure

from prism_transformer.report.drawing import PAGE_STYLE, Picture
from prism_transformer.report.palette import BASELINE, FAINT, INK, PAPER, REST, SHADE, TONES

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)

# Colours by what they mean; the page sets the variables for light and for dark paper.
VARIABLES = {tone.light: f"var(--arm-{tone.name})" for tone in (BASELINE, *TONES, REST)} | {
    INK: "var(--ink)",
    "#000000": "var(--ink)",
    "#333333": "var(--ink)",
    FAINT: "var(--faint)",
    "#888888": "var(--faint)",
    SHADE: "var(--shade)",
    PAPER: "var(--paper)",
    "#228833": "var(--good)",
}
COLOUR = re.compile(r"#[0-9a-f]{6}\b")


def svg_text(figure: Figure) -> str:
    """The figure as a file would have it; its layout is then settled for other formats."""
    with mpl.rc_context(PAGE_STYLE), io.StringIO() as stream:
        engine = figure.get_layout_engine()
        if engine is not None:  # once for all formats, and without drawing everything for it
            engine.execute(figure)
            figure.set_layout_engine(None)
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        return stream.getvalue()


def inline_svg(source: str, picture: Picture, key: str, alt: str, arms: Mapping[str, int]) -> str:
    """The same, ready to stand in a page: an image with a text, ids that are its own."""
    root = ElementTree.fromstring(source)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    _drop_background(root)
    _attach_marks(root, picture, arms)
    for element in root.iter():
        _rename(element, key)
        style = element.get("style")
        if style:
            element.set("style", COLOUR.sub(lambda m: VARIABLES.get(m[0], m[0]), style))
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", alt)
    width = float((root.get("viewBox") or "0 0 460 0").split()[2])
    root.set("style", f"--natural:{width * 4 / 3:.0f}px")
    return ElementTree.tostring(root, encoding="unicode")


def _drop_background(root: ElementTree.Element) -> None:
    """White sheets under the figure and its axes: the page is their paper."""
    for group in root.iter(f"{{{SVG}}}g"):
        for child in list(group):
            style = child.get("style", "").replace(" ", "")
            if child.tag == f"{{{SVG}}}path" and style == "fill:#ffffff" and _is_sheet(group):
                group.remove(child)


def _is_sheet(group: ElementTree.Element) -> bool:
    return re.fullmatch(r"patch_\d+", group.get("id", "")) is not None


def _attach_marks(root: ElementTree.Element, picture: Picture, arms: Mapping[str, int]) -> None:
    """Say on every marked element which arm it is of, and on each point what it says."""
    places = {element.get("id"): element for element in root.iter() if element.get("id")}
    for mark in picture.marks:
        element = places.get(mark.gid)
        if element is None:  # matplotlib drew nothing: all of it lies outside
            continue
        if mark.arm is not None and mark.arm in arms:
            element.set("data-arm", str(arms[mark.arm]))
        points = list(element.iter(f"{{{SVG}}}use")) or list(element.iter(f"{{{SVG}}}path"))
        if mark.tips and len(points) == len(mark.tips):
            for point, tip in zip(points, mark.tips, strict=True):
                point.set("class", "point")
                ElementTree.SubElement(point, f"{{{SVG}}}title").text = tip


def _rename(element: ElementTree.Element, key: str) -> None:
    """Ids and the references to them, with the figure's key before them."""
    for name, value in list(element.attrib.items()):
        if name == "id":
            element.set(name, f"{key}-{value}")
        elif name == f"{{{XLINK}}}href" and value.startswith("#"):
            del element.attrib[name]  # the plain attribute does it now
            element.set("href", f"#{key}-{value[1:]}")
        elif "url(#" in value:
            element.set(name, value.replace("url(#", f"url(#{key}-"))
