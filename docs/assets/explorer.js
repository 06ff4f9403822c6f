// Shows the curves lehr computed when the site was built; it knows no formula of its own.
"use strict";
{
  const part = (name) => document.getElementById(`explorer-${name}`);
  const data = JSON.parse(part("curves").textContent);
  const [noise, levels, std, backward, anneal] = ["noise", "levels", "std", "backward", "anneal"].map(part);
  const paper = Number(std.value); // the slider starts at the paper's std
  let timer = 0;

  function element(name, attributes, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  }

  function show() {
    const frame = data.frames[levels.value];
    const curves = data.curves[noise.value][levels.value];
    const at = Number(std.value);
    const behind = backward.checked ? paper : at;
    part("value").setAttribute("points", curves[at][0]);
    part("slope").setAttribute("points", curves[behind][1]);
    part("staircase").setAttribute("points", frame.staircase);
    part("axes").replaceChildren(
      ...frame.levels.flatMap(([text, y]) => [
        element("line", { x1: 44, x2: 630, y1: y, y2: y }),
        element("text", { class: "explorer-level", x: 36, y }, text),
      ]),
      ...frame.places.flatMap(([text, x]) => [
        element("line", { x1: x, x2: x, y1: 12, y2: 232 }),
        element("line", { x1: x, x2: x, y1: 262, y2: 412 }),
        element("text", { class: "explorer-place", x, y: 432 }, text),
      ]),
    );
    const masses = behind === 0 ? frame.masses : []; // without noise the gradient is a point mass at each threshold
    part("masses").replaceChildren(
      ...masses.map((x) => element("line", { x1: x, x2: x, y1: 412, y2: 264, "marker-end": "url(#explorer-arrow)" })),
    );
    part("told").textContent = `std ${data.stds[at]} · steepest slope ${curves[behind][2]}`;
    std.setAttribute("aria-valuetext", data.stds[at]);
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    anneal.textContent = "Anneal";
  }

  anneal.addEventListener("click", () => {
    if (timer) return stop();
    if (Number(std.value) === 0) std.value = paper;
    anneal.textContent = "Stop";
    timer = setInterval(() => {
      std.value = Number(std.value) - 1;
      show();
      if (Number(std.value) === 0) stop();
    }, 160);
  });
  std.addEventListener("input", stop);
  for (const control of [noise, levels, std, backward]) control.addEventListener("input", show);
  part("noise").form.addEventListener("submit", (event) => event.preventDefault());
  show(); // a browser may have kept the controls of an earlier visit
}
