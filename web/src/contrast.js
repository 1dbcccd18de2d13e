// SPDX-License-Identifier: Apache-2.0
// Window (width of the values that are told apart) and level (their middle).
import { byId } from "./dom.js";

const STEPS = 500;

export class Contrast {
  constructor(viewer, canvas) {
    this.viewer = viewer;
    for (const id of ["level", "window"]) byId(id).addEventListener("input", () => this.apply());
    byId("contrast-reset").addEventListener("click", () => { viewer.range = this.start; this.read(); });
    canvas.addEventListener("mousemove", (event) => event.buttons & 2 && this.read()); // NiiVue's own drag
  }

  // A new image: sliders over all of its values.
  begin() {
    const { global_min: low, global_max: high } = this.viewer.image;
    this.start = this.viewer.range;
    const span = high > low ? high - low : 1;
    Object.assign(byId("level"), { min: low, max: low + span, step: span / STEPS });
    Object.assign(byId("window"), { min: span / STEPS, max: span, step: span / STEPS });
    this.read();
  }

  read() {
    const [low, high] = this.viewer.range;
    byId("level").value = (low + high) / 2;
    byId("window").value = high - low;
    this.tell(low, high);
  }

  apply() {
    const level = Number(byId("level").value), half = Number(byId("window").value) / 2;
    this.viewer.range = [level - half, level + half];
    this.tell(level - half, level + half);
  }

  tell(low, high) {
    byId("level-text").textContent = short((low + high) / 2);
    byId("window-text").textContent = short(high - low);
  }
}

const short = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3));
