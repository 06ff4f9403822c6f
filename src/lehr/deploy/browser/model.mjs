// A network that `lehr export --to wasm` wrote, in a page or in node:
//
//     import { load } from "./model.mjs";
//     const net = await load(fetch("model.wasm"));   // or its bytes
//     const { label, scores } = net.run(image);      // net.shape: channel, row, column; numbers in that order
const INPUTS = { 1: Uint8Array, "-1": Int8Array, 4: Float32Array };

export async function load(source) {
  const given = await source;
  const bytes = typeof Response !== "undefined" && given instanceof Response ? await given.arrayBuffer() : given;
  const { exports: c } = (await WebAssembly.instantiate(bytes)).instance;
  const text = (at) => {
    const memory = new Uint8Array(c.memory.buffer);
    return new TextDecoder().decode(memory.subarray(at, memory.indexOf(0, at)));
  };
  const shape = [c.lehr_channels(), c.lehr_rows(), c.lehr_columns()];
  const classes = Array.from({ length: c.lehr_outputs() }, (_, i) => text(c.lehr_class_name(i)));
  const input = new INPUTS[c.lehr_input_type()](c.memory.buffer, c.lehr_input(), shape[0] * shape[1] * shape[2]);
  const run = (image) => {
    if (image.length !== input.length)
      throw new RangeError(`the network takes ${shape.join(" x ")} numbers, got ${image.length}`);
    input.set(image);
    const index = c.lehr_classify();
    const logits = Float32Array.from(classes, (_, i) => c.lehr_logit_of(i));
    const scores = c.lehr_has_scores() ? Int32Array.from(classes, (_, i) => c.lehr_score_of(i)) : null;
    return { index, label: classes[index], scores, logits };
  };
  return { shape, classes, type: input.constructor, bytes: bytes.byteLength, run };
}
