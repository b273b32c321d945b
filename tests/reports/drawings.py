"""Contents of the SVG of a figure."""

import re
import xml.etree.ElementTree as ET

NAMESPACE = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(t.itertext()) for t in ET.fromstring(svg).iter(f"{NAMESPACE}text")]


def lines_of(svg: str) -> list[list[tuple[float, float]]]:
    """The points of each data line of a figure, by the colours of the lines."""
    found: dict[str, list[tuple[float, float]]] = {}
    for path in ET.fromstring(svg).iter(f"{NAMESPACE}path"):
        style = path.get("style", "")
        colour = re.search(r"stroke: ?(?:var\([^,]*, ?)?(#\w{6})", style)
        points = [tuple(map(float, p)) for p in re.findall(r"[ML] ?(-?[\d.]+) (-?[\d.]+)", path.get("d", ""))]
        if colour and len(points) == 3 and "fill: none" in style:
            found.setdefault(colour[1].lower(), points)  # type: ignore[arg-type]
    return list(found.values())


def marks_of(svg: str) -> list[list[tuple[float, float]]]:
    """The points that are marked, by the colours of the marks."""
    found: dict[str, list[tuple[float, float]]] = {}
    for use in ET.fromstring(svg).iter(f"{NAMESPACE}use"):
        colour = re.search(r"fill: ?(?:var\([^,]*, ?)?(#\w{6})", use.get("style", ""))
        if colour:
            found.setdefault(colour[1].lower(), []).append((float(use.get("x", "")), float(use.get("y", ""))))
    return list(found.values())
