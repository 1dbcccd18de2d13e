// SPDX-License-Identifier: Apache-2.0
// The label map of one frame: its voxels, strokes that can be undone, and the file that is submitted.
// Voxels are in the order of NiiVue's drawing: x to the right, y to the front, z to the head, x fastest.
import { NVImage } from "@niivue/niivue";

const MAX_STROKES = 100;

export class LabelMap {
  constructor(image, values, result = null, origin = "saved") {
    this.image = image; // whose header the file gets
    this.values = values;
    this.result = result; // of the model, or null for a saved or an empty label
    this.origin = result ? "predicted" : origin; // or "saved", "empty"
    this.strokes = [];
    this.stroke = null;
    this.dirty = false; // whether there are changes that were not submitted
  }

  // Read a label file; `of` takes a frame out of it.
  static load(file) {
    return NVImage.loadFromFile({ file, name: file.name });
  }

  static of(image, frame, result = null) {
    const [, nx, ny, nz] = image.dimsRAS;
    const start = image.img2RASstart, step = image.img2RASstep;
    const offset = image.nFrame4D > 1 ? frame * nx * ny * nz : 0;
    const values = new Uint8Array(nx * ny * nz);
    for (let z = 0, index = 0; z < nz; z += 1) {
      for (let y = 0; y < ny; y += 1) {
        const row = offset + start[0] + start[1] + y * step[1] + start[2] + z * step[2];
        for (let x = 0; x < nx; x += 1) values[index++] = image.img[row + x * step[0]];
      }
    }
    return new LabelMap(single(image), values, result);
  }

  static empty(background) {
    const [, nx, ny, nz] = background.dimsRAS;
    return new LabelMap(single(background), new Uint8Array(nx * ny * nz), null, "empty");
  }

  begin() {
    this.stroke = new Map(); // voxel -> value before
  }

  paint(index, value) {
    if (this.values[index] === value) return;
    if (!this.stroke.has(index)) this.stroke.set(index, this.values[index]);
    this.values[index] = value;
  }

  end() {
    if (this.stroke?.size) {
      this.strokes.push(this.stroke);
      if (this.strokes.length > MAX_STROKES) this.strokes.shift();
      this.dirty = true;
    }
    this.stroke = null;
  }

  undo() {
    const stroke = this.strokes.pop();
    if (!stroke) return;
    for (const [index, value] of stroke) this.values[index] = value;
    this.dirty = true;
  }

  // Voxels of each class.
  counts() {
    const found = new Array(256).fill(0);
    for (const value of this.values) found[value] += 1;
    return found;
  }

  async file(name) {
    const bytes = this.image.toUint8Array(this.values);
    const packed = new Blob([bytes]).stream().pipeThrough(new CompressionStream("gzip"));
    return new File([await new Response(packed).arrayBuffer()], name, { type: "application/gzip" });
  }
}

// The image with a header of one frame, without what else a header may carry about the patient.
function single(image) {
  const hdr = Object.assign(Object.create(Object.getPrototypeOf(image.hdr)), image.hdr);
  hdr.dims = [3, ...image.hdr.dims.slice(1, 4), 1, 1, 1, 1];
  Object.assign(hdr, { description: "", aux_file: "", intent_name: "" });
  return Object.create(image, { hdr: { value: hdr }, extensions: { value: [] } });
}
