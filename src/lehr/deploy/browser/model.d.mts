/** What a network says of one image. */
export interface Result {
  /** The class with the largest logit, the first of several. */
  index: number;
  label: string;
  /** The integers before the last scale and shift; null where a network ends in floats. */
  scores: Int32Array | null;
  logits: Float32Array;
}

export interface Network {
  /** Channels, rows and columns. */
  shape: [number, number, number];
  classes: string[];
  /** What its input is made of. */
  type: Uint8ArrayConstructor | Int8ArrayConstructor | Float32ArrayConstructor;
  /** Size of the WebAssembly file. */
  bytes: number;
  /** Run one image: numbers in the order channel, row, column. */
  run(image: ArrayLike<number>): Result;
}

export function load(source: BufferSource | Response | Promise<BufferSource | Response>): Promise<Network>;
