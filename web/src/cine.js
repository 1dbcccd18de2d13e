// SPDX-License-Identifier: Apache-2.0
// Slider and play button for the frames of a cine.
import { byId } from "./dom.js";

const PERIOD = 90; // milliseconds a frame

export class Cine {
  constructor(go) {
    this.go = go;
    this.timer = null;
    byId("frame").addEventListener("input", (event) => { this.stop(); go(Number(event.target.value)); });
    byId("play").addEventListener("click", () => this.toggle());
  }

  show(frame, frames) {
    Object.assign(this, { frame, frames });
    byId("cine").hidden = frames < 2;
    byId("frame").max = Math.max(0, frames - 1);
    byId("frame").value = frame;
    byId("frame-text").textContent = `${frame + 1} of ${frames}`;
    if (frames < 2) this.stop();
  }

  // One frame on or back, around the end: a cine is a loop.
  step(by) {
    if (this.frames > 1) this.go((this.frame + by + this.frames) % this.frames);
  }

  toggle() {
    if (this.timer) return this.stop();
    if (!(this.frames > 1)) return undefined;
    this.timer = setInterval(() => this.step(1), PERIOD);
    return this.label(true);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.label(false);
  }

  label(plays) {
    byId("play").textContent = plays ? "❚❚" : "▶";
    byId("play").setAttribute("aria-label", plays ? "Pause" : "Play");
  }
}
