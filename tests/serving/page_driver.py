# SPDX-License-Identifier: Apache-2.0
"""Use the page as a person does: choose a case, run the model, draw with the mouse."""

from __future__ import annotations

from typing import Any

import nibabel as nib
import numpy as np
from browser_driver import Browser

PAGE = "document.getElementById"


class Page:
    """The page of a server in a browser.

    Args:
        browser: a browser.
        url: of the server.
    """

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser = browser
        browser.events.clear()
        browser.open(url)
        browser.wait("document.body?.dataset.ready")

    def text(self, name: str) -> str:
        """Return the text of an element."""
        return str(self.browser.evaluate(f"{PAGE}('{name}').innerText"))

    def hidden(self, name: str) -> bool:
        """Tell whether an element cannot be seen."""
        return not self.browser.evaluate(f"{PAGE}('{name}').checkVisibility()")

    def press(self, name: str) -> None:
        """Press a button by its id, or by a selector."""
        found = f"{PAGE}('{name}')" if name.replace("-", "").isalnum() else f"document.querySelector(`{name}`)"
        self.browser.evaluate(f"{found}.click()")

    def slide(self, name: str, value: float) -> None:
        """Move a slider."""
        act = f"slider => {{ slider.value = {value}; slider.dispatchEvent(new Event('input')); }}"
        self.browser.evaluate(f"({act})({PAGE}('{name}'))")

    def key(self, key: str, code: str = "", modifiers: int = 0) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=code, modifiers=modifiers)

    def cases(self) -> list[str]:
        """Return the ids of the work list from top to bottom."""
        return list(self.browser.evaluate("Array.from(document.querySelectorAll('.case'), button => button.title)"))

    def choose(self, case: str) -> None:
        """Press a case of the work list and wait for it."""
        self.press(f".case[title='{case}']")
        self.opened(case)

    def opened(self, case: str) -> None:
        """Wait until a case is shown."""
        self.browser.wait(f"vmfseg.reading.study?.id === '{case}' && !vmfseg.reading.busy")

    def run(self) -> None:
        """Run the model."""
        self.press("run")
        self.browser.wait("vmfseg.reading.result && !vmfseg.reading.busy")

    def values(self) -> list[int]:
        """Return the label map that is shown."""
        return list(self.browser.evaluate("Array.from(vmfseg.reading.map?.values ?? [])"))

    def drag(self, places: list[tuple[float, float]]) -> None:
        """Press the left button at the first place, move over the others, and release it."""
        send = self.browser.call
        (x, y), rest = places[0], places[1:]
        send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        send("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", buttons=1, clickCount=1)
        for x, y in rest:
            send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
        send("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", buttons=0, clickCount=1)

    def places(self, scan: Any, voxels: list[tuple[int, int]]) -> list[tuple[float, float]]:
        """Return where on the screen the centers of voxels of an axial slice lie.

        Radiological convention: the patient's right is on the left, the front on top; the slice fills the canvas and
        is centered in it. The scan's axes must be those of the patient, in any direction.

        Args:
            scan: nibabel image.
            voxels: indices along the first two axes of the file.
        """
        left, top, width, height = self.browser.evaluate(
            f"(e => {{ const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; }})({PAGE}('canvas'))"
        )
        shape, steps = np.array(scan.shape[:2]), np.array(scan.header.get_zooms()[:2])
        scale = min(width / (shape[0] * steps[0]), height / (shape[1] * steps[1]))
        pixels = scale * steps
        corner = np.array([left + width / 2, top + height / 2]) - pixels * shape / 2
        letters = nib.aff2axcodes(scan.affine)
        found = []
        for voxel in voxels:
            to_left = voxel[0] if letters[0] == "L" else shape[0] - 1 - voxel[0]
            to_back = voxel[1] if letters[1] == "P" else shape[1] - 1 - voxel[1]
            x, y = corner + pixels * (np.array([to_left, to_back]) + 0.5)
            found.append((float(x), float(y)))
        return found

    def pixels(self) -> tuple[int, int]:
        """Return how many pixels of the canvas are gray, and how many have a color."""
        gray, colored = self.browser.evaluate("""(async () => {
          vmfseg.viewer.nv.drawScene();
          const canvas = document.getElementById("canvas"), copy = document.createElement("canvas");
          [copy.width, copy.height] = [canvas.width, canvas.height];
          const context = copy.getContext("2d");
          context.drawImage(canvas, 0, 0);
          const data = context.getImageData(0, 0, copy.width, copy.height).data;
          let gray = 0, colored = 0;
          for (let k = 0; k < data.length; k += 4) {
            const spread = Math.max(data[k], data[k + 1], data[k + 2]) - Math.min(data[k], data[k + 1], data[k + 2]);
            if (spread > 30) colored += 1; else if (data[k] > 30) gray += 1;
          }
          return [gray, colored];
        })()""")
        return gray, colored

    def brightness(self, places: list[tuple[float, float]]) -> list[int]:
        """Return the red channel of the canvas at places of the window."""
        script = """(async (places) => {
          vmfseg.viewer.nv.drawScene();
          const canvas = document.getElementById("canvas"), copy = document.createElement("canvas");
          [copy.width, copy.height] = [canvas.width, canvas.height];
          const context = copy.getContext("2d"), box = canvas.getBoundingClientRect();
          context.drawImage(canvas, 0, 0);
          return places.map(([x, y]) => context.getImageData(x - box.x, y - box.y, 1, 1).data[0]);
        })"""
        return list(self.browser.evaluate(f"{script}({[list(place) for place in places]})"))
