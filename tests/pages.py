"""The part of a page where a network answers, `lehr-try`, used as a person does: drawing and dropping pictures."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from browser import Browser

# Digits as strokes, in parts of the square.
DIGITS = {
    "0": [[(0.5 + 0.22 * math.sin(a * math.pi / 12), 0.5 - 0.35 * math.cos(a * math.pi / 12)) for a in range(25)]],
    "4": [[(0.5, 0.15), (0.38, 0.37), (0.25, 0.6), (0.5, 0.6), (0.75, 0.6)], [(0.6, 0.4), (0.57, 0.6), (0.55, 0.88)]],
    "7": [[(0.25, 0.2), (0.5, 0.2), (0.72, 0.2), (0.6, 0.5), (0.45, 0.85)], [(0.35, 0.5), (0.65, 0.5)]],
}


class TryIt:
    """One such element of an open page."""

    def __init__(self, browser: Browser, name: str) -> None:
        self.browser = browser
        self._answers = f"window.answers_of_{name.replace('-', '_')}"
        self._element = f"document.getElementById('{name}')"
        browser.evaluate(f"{self._answers} = []")
        browser.evaluate(f"{self._element}.addEventListener('classified', (e) => {self._answers}.push(e.detail)), 0")
        self._wait(f"{self._element}.querySelector('.lehr-paper') !== null")

    def draw(self, digit: str) -> dict[str, Any]:
        """Clear the square and draw a digit with the mouse; what the network says in the end."""
        browser = self.browser
        browser.evaluate(f"{self._element}.querySelector('button').click()")
        left, top, width, height = self._paper()
        for stroke in DIGITS[digit]:
            browser.stroke([(left + x * width, top + y * height) for x, y in stroke])
        return self._answer()

    def drop(self, picture: Path) -> dict[str, Any]:
        """Drop a picture on the square; what the network says."""
        left, top, width, height = self._paper()
        before = self.browser.evaluate(f"{self._answers}.length")
        self.browser.drop(picture, left + width / 2, top + height / 2)
        self._wait(f"{self._answers}.length > {before}")
        return self._answer()

    def click(self, sample: str) -> dict[str, Any]:
        """Click a picture that the page offers; what the network says."""
        before = self.browser.evaluate(f"{self._answers}.length")
        self.browser.evaluate(f"{self._element}.querySelector('[title={sample}]').click()")
        self._wait(f"{self._answers}.length > {before}")
        return self._answer()

    def said(self) -> str:
        """The line above the bars."""
        return self.browser.evaluate(f"{self._element}.querySelector('.lehr-told').textContent")

    def _paper(self) -> list[float]:
        """Where the square is: left, top, width, height. It is scrolled to the middle of the window first."""
        paper = f"{self._element}.querySelector('.lehr-paper')"
        self.browser.evaluate(f"{paper}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        return self.browser.evaluate(
            f"(({{left, top, width, height}}) => [left, top, width, height])({paper}.getBoundingClientRect())"
        )

    def _answer(self) -> dict[str, Any]:
        """The last answer, once two frames have passed without another."""
        idle = "window.idle = false, requestAnimationFrame(() => requestAnimationFrame(() => window.idle = true))"
        self.browser.evaluate(f"{idle}, 0")
        self._wait("window.idle")
        plain = "(({image, label, scores}) => ({image: [...image], label, scores: [...scores]}))"
        return self.browser.evaluate(f"{plain}({self._answers}.at(-1))")

    def _wait(self, condition: str) -> None:
        deadline = time.monotonic() + 60
        while not self.browser.evaluate(condition):
            assert time.monotonic() < deadline, f"{condition} does not come true: {self.browser.problems}"
