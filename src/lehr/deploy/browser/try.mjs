// Draw, drop or open a picture, and see what a network makes of it: `tryIt(place, bytes, samples)` fills an element.
// `samples`, perhaps none, are pictures to click: their addresses by their names.
// Each answer is an event "classified" of that element, whose detail is the image and what model.mjs says of it.
//
// The picture on the canvas is a whole multiple of the network's size, and each pixel of the network is the mean of a
// square of it, so a picture of exactly the network's size reaches the network unchanged.
const AT_LEAST = 256; // pixels of the canvas

export async function tryIt(place, bytes, samples = {}) {
  const net = await load(bytes);
  const [channels, rows, columns] = net.shape;
  const grey = channels === 1;
  const factor = Math.ceil(AT_LEAST / Math.max(rows, columns));
  const make = (name, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  };
  const surface = () => make("canvas", { width: columns * factor, height: rows * factor });
  const paper = surface(), fitted = surface(), seen = make("canvas", { width: columns, height: rows, className: "lehr-seen" });
  const draw = paper.getContext("2d", { willReadFrequently: true });
  const colour = make("input", { type: "color", value: grey ? "#ffffff" : "#303030", title: "colour of the pen" });
  const file = make("input", { type: "file", accept: "image/*", hidden: true });
  const open = make("button", { type: "button", textContent: "Open", title: "open a picture", onclick: () => file.click() });
  const clear = make("button", { type: "button", textContent: "Clear", onclick: () => wipe() });
  const fill = make("button", { type: "button", textContent: "Fill", title: "with the colour of the pen", onclick: () => wipe(colour.value) });
  const shown = Object.entries(samples).map(([name, address]) => {
    const picture = make("img", { src: address, alt: name, width: columns, height: rows });
    const onclick = async () => show(await createImageBitmap(picture, { colorSpaceConversion: "none" }));
    return make("button", { type: "button", title: name, onclick }, picture);
  });
  const told = make("p", { className: "lehr-told", ariaLive: "polite" });
  const bars = net.classes.map((name) => {
    const bar = make("meter", { min: 0, max: 1 }), score = make("td");
    return { bar, score, row: make("tr", {}, make("th", { textContent: name, scope: "row" }), make("td", {}, bar), score) };
  });
  paper.className = "lehr-paper";
  paper.tabIndex = 0;
  paper.setAttribute("aria-label", "draw here");
  place.replaceChildren(
    make("div", { className: "lehr-left" }, paper, make("div", { className: "lehr-tools" }, clear, open, file, ...(grey ? [] : [fill, colour]), seen), ...(shown.length ? [make("div", { className: "lehr-tools lehr-samples" }, ...shown)] : [])),
    make("div", { className: "lehr-right" }, told, make("table", { className: "lehr-scores" }, make("tbody", {}, ...bars.map(({ row }) => row)))),
  );

  let drawn = true; // a drawing is cut out and enlarged, as digits in data sets are; a picture stays as it is
  let last = null, waiting = false;

  function wipe(ground = grey ? "#000000" : "#ffffff") {
    draw.fillStyle = ground;
    draw.fillRect(0, 0, paper.width, paper.height);
    drawn = true;
    soon();
  }

  function show(picture) {
    const scale = Math.max(paper.width / picture.width, paper.height / picture.height); // the middle, in the network's proportions
    const [width, height] = [paper.width / scale, paper.height / scale];
    draw.imageSmoothingEnabled = picture.width !== columns || picture.height !== rows;
    draw.imageSmoothingQuality = "high";
    draw.drawImage(picture, (picture.width - width) / 2, (picture.height - height) / 2, width, height, 0, 0, paper.width, paper.height);
    drawn = false;
    soon();
  }

  async function take(chosen) {
    if (!chosen) return;
    try {
      show(await createImageBitmap(chosen, { colorSpaceConversion: "none" }));
    } catch {
      told.textContent = `${chosen.name} is no picture that this browser can read`;
    }
  }

  function fit() {
    const { data } = draw.getImageData(0, 0, paper.width, paper.height);
    let [left, top, right, bottom] = [paper.width, paper.height, 0, 0];
    for (let y = 0, i = 0; y < paper.height; y++)
      for (let x = 0; x < paper.width; x++, i += 4)
        if (data[i] > 64) [left, top, right, bottom] = [Math.min(left, x), Math.min(top, y), Math.max(right, x + 1), Math.max(bottom, y + 1)];
    const context = fitted.getContext("2d", { willReadFrequently: true });
    context.fillRect(0, 0, fitted.width, fitted.height);
    if (right > left) {
      const scale = Math.min(fitted.width / (right - left), fitted.height / (bottom - top));
      const [width, height] = [(right - left) * scale, (bottom - top) * scale];
      const [x, y] = [(fitted.width - width) / 2, (fitted.height - height) / 2];
      context.drawImage(paper, left, top, right - left, bottom - top, x, y, width, height);
    }
    return fitted;
  }

  function pixels() {
    const from = grey && drawn ? fit() : paper;
    const { data } = from.getContext("2d").getImageData(0, 0, from.width, from.height);
    const sums = new Float64Array(channels * rows * columns);
    for (let y = 0, i = 0; y < from.height; y++)
      for (let x = 0; x < from.width; x++, i += 4) {
        const at = Math.floor(y / factor) * columns + Math.floor(x / factor);
        if (grey) sums[at] += (data[i] * 19595 + data[i + 1] * 38470 + data[i + 2] * 7471 + 0x8000) >> 16; // as Pillow does
        else for (let c = 0; c < 3; c++) sums[c * rows * columns + at] += data[i + c];
      }
    return Uint8Array.from(sums, (sum) => Math.round(sum / (factor * factor)));
  }

  function preview(image) {
    const context = seen.getContext("2d"), shown = context.createImageData(columns, rows), plane = rows * columns;
    for (let i = 0; i < plane; i++)
      for (let c = 0; c < 4; c++) shown.data[4 * i + c] = c === 3 ? 255 : image[grey ? i : c * plane + i];
    context.putImageData(shown, 0, 0);
  }

  function classify() {
    waiting = false;
    const image = pixels(), result = net.run(image), start = performance.now();
    let runs = 0;
    do net.run(image), runs++; while (performance.now() - start < 4);
    const each = (performance.now() - start) / runs;
    preview(image);
    const most = Math.max(...result.logits), powers = result.logits.map((logit) => Math.exp(logit - most));
    const total = powers.reduce((sum, power) => sum + power, 0);
    bars.forEach(({ bar, score, row }, i) => {
      bar.value = powers[i] / total;
      score.textContent = result.scores ? result.scores[i] : result.logits[i].toFixed(3);
      row.className = i === result.index ? "lehr-best" : "";
    });
    told.replaceChildren(make("strong", { textContent: result.label }), ` · ${each.toFixed(2)} ms an image · ${Math.round(net.bytes / 1000)} KB`);
    place.dispatchEvent(new CustomEvent("classified", { detail: { image, ...result } }));
  }

  function soon() {
    if (!waiting) requestAnimationFrame(classify);
    waiting = true;
  }

  paper.onpointerdown = (event) => {
    paper.setPointerCapture(event.pointerId);
    if (grey && !drawn) wipe();
    last = null;
    paper.onpointermove(event);
  };
  paper.onpointermove = (event) => {
    if (!event.buttons) return;
    const box = paper.getBoundingClientRect();
    const here = [((event.clientX - box.left) / box.width) * paper.width, ((event.clientY - box.top) / box.height) * paper.height];
    Object.assign(draw, { strokeStyle: colour.value, lineWidth: paper.width / 12, lineCap: "round", lineJoin: "round" });
    draw.beginPath();
    draw.moveTo(...(last ?? here));
    draw.lineTo(...here);
    draw.stroke();
    last = here;
    soon();
  };
  paper.ondragover = (event) => event.preventDefault();
  paper.ondrop = (event) => (event.preventDefault(), take(event.dataTransfer.files[0]));
  file.onchange = () => take(file.files[0]);
  wipe();
}
