// The values of a chart at the epoch under the pointer, or at the one the arrow keys are at.
"use strict";
const tip = document.getElementById("tip");

function shown(value, unit) {
  if (value === null) return "";
  return unit === "percent" ? (100 * value).toFixed(2) + " %" : String(Number(value.toPrecision(4)));
}

function row(cells, tag) {
  const line = document.createElement("tr");
  for (const text of cells) {
    const cell = document.createElement("td");
    const inner = tag ? cell.appendChild(document.createElement(tag)) : cell;
    inner.textContent = text;
    line.append(cell);
  }
  return line;
}

for (const svg of document.querySelectorAll("svg[data-chart]")) {
  const chart = JSON.parse(svg.dataset.chart);
  const rule = svg.querySelector(".rule");
  if (!chart.epochs.length) continue;
  let at = -1;

  function show(index) {
    at = index;
    rule.setAttribute("x1", chart.x[at]);
    rule.setAttribute("x2", chart.x[at]);
    rule.setAttribute("visibility", "visible");
    const table = document.createElement("table");
    table.append(row(["epoch", chart.epochs[at]], "b"));
    const lines = chart.series.filter(([, values]) => values[at] !== null).reverse();
    for (const [name, values] of lines.slice(0, 16)) table.append(row([name, shown(values[at], chart.unit)]));
    if (lines.length > 16) table.append(row(["and " + (lines.length - 16) + " more", ""]));
    tip.replaceChildren(table);
    tip.hidden = false;
    const box = svg.getBoundingClientRect();
    const x = box.left + (chart.x[at] / svg.viewBox.baseVal.width) * box.width;
    const left = x + 14 + tip.offsetWidth < innerWidth ? x + 14 : Math.max(4, x - 14 - tip.offsetWidth);
    tip.style.left = left + scrollX + "px";
    tip.style.top = box.top + scrollY + 12 + "px";
  }

  function hide() {
    rule.setAttribute("visibility", "hidden");
    tip.hidden = true;
    at = -1;
  }

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    let nearest = 0;
    chart.x.forEach((place, index) => {
      if (Math.abs(place - x) < Math.abs(chart.x[nearest] - x)) nearest = index;
    });
    if (nearest !== at || tip.hidden) show(nearest);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step) return;
    event.preventDefault();
    show(Math.min(Math.max(at < 0 && step < 0 ? chart.x.length - 1 : at + step, 0), chart.x.length - 1));
  });
}
