"""Vectors of 16 bytes on `cifar10-quick`: WebAssembly against onnxruntime-web in node, SSE2 against plain words.

    python benchmarks/vectors.py [--seconds 20]

onnxruntime-web comes from npm, into a temporary folder; without node or npm its rows are not measured. In node all
variants take turns in one process, one thread, batch 1, after each was warm; each time is the least of them. The
float32 twin has the same shapes, BatchNorm folded and ReLU; the 8-bit one is onnxruntime's static quantization of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from lehr import zoo
from lehr.deploy import compile, to_wasm
from lehr.deploy.bench import twins
from lehr.deploy.integer_net import IntegerNet, random_batch
from measure import Row, fastest, report

NETWORK = "cifar10-quick"
ONNXRUNTIME_WEB = "onnxruntime-web@1.23.0"
TURNS = """
import { readFileSync } from "fs";
import * as ort from "onnxruntime-web/wasm";
import { load } from "./model.mjs";
const [shape, seconds] = JSON.parse(process.argv[2]);
const image = Uint8Array.from({ length: shape.reduce((a, b) => a * b) }, (_, i) => (i * 37) & 255);
ort.env.wasm.numThreads = 1;
const net = await load(readFileSync("model.wasm"));
const runs = { lehr: async () => net.run(image) };
for (const name of ["fp32", "int8"]) {
  const session = await ort.InferenceSession.create(new Uint8Array(readFileSync(`${name}.onnx`)));
  const feeds = { [session.inputNames[0]]: new ort.Tensor("uint8", image, [1, ...shape]) };
  runs[name] = () => session.run(feeds);
}
const best = {};
const start = performance.now();
while (performance.now() - start < 1000 * seconds) {
  const warm = performance.now() - start > 300 * seconds;
  for (const [name, run] of Object.entries(runs))
    for (let i = 0; i < 10; i++) {
      const from = performance.now();
      await run();
      if (warm && i > 2) best[name] = Math.min(best[name] ?? Infinity, performance.now() - from);
    }
}
console.log(JSON.stringify(best));
"""


def in_node(net: IntegerNet, folder: Path, seconds: float) -> dict[str, float]:
    """Least milliseconds of an image: lehr, fp32, int8."""
    twins(net, random_batch(net, 16), folder)
    (folder / "turns.mjs").write_text(TURNS)
    install = ["npm", "install", "--no-audit", "--no-fund", "--silent", ONNXRUNTIME_WEB]
    subprocess.run(install, cwd=folder, check=True)
    command = ["node", "turns.mjs", json.dumps([net.input_shape, seconds])]
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def sse2(net: IntegerNet, compiler: str) -> dict[str, float]:
    """Least milliseconds of an image with the instruction sets scalar and vector."""
    os.environ["CC"] = compiler
    image = random_batch(net, 1)
    engines = {name: compile(net, instruction_set=name) for name in ("scalar", "vector")}
    times = fastest({name: lambda engine=engine: engine(image) for name, engine in engines.items()}, 300)
    return {name: 1e3 * seconds for name, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="how long node measures")
    options = parser.parse_args()
    net = zoo.networks()[NETWORK].load()
    rows = []
    for compiler, goal in (("gcc", 0.35 / 0.56), ("clang", 0.30 / 0.56)):
        if shutil.which(compiler):
            times = sse2(net, compiler)
            print(f"{compiler}: scalar {times['scalar']:.3f} ms, vector {times['vector']:.3f} ms")
            rows.append(Row(f"SSE2 by {compiler}, of the time of plain words", times["vector"] / times["scalar"], goal))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        to_wasm(net, folder / "model.wasm")
        rows.append(Row("WebAssembly file, KB", (folder / "model.wasm").stat().st_size / 1e3, 290, slack=1.02))
        if shutil.which("node") and shutil.which("npm"):
            times = in_node(net, folder, options.seconds)
            print(", ".join(f"{name} {milliseconds:.3f} ms" for name, milliseconds in times.items()) + " in node")
            for name, goal in (("fp32", 8), ("int8", None)):
                what = f"WebAssembly against onnxruntime-web {name}, times as fast"
                rows.append(Row(what, times[name] / times["lehr"], goal, at_least=True))
    report(rows)


if __name__ == "__main__":
    main()
