// SPDX-License-Identifier: Apache-2.0
// A round brush and an eraser: strokes on one slice of a label map.

export class Brush {
  constructor(stage, viewer, ring, currentMap, changed) {
    Object.assign(this, { stage, viewer, ring, currentMap, changed });
    this.tool = "look";
    this.size = 3; // diameter in pixels of the image
    this.value = 1;
    this.last = null;
    stage.addEventListener("pointerdown", (event) => this.begin(event), { capture: true });
    stage.addEventListener("pointermove", (event) => this.move(event));
    stage.addEventListener("pointerup", () => this.finish());
    stage.addEventListener("pointercancel", () => this.finish());
    stage.addEventListener("pointerleave", () => { ring.hidden = true; });
    for (const kind of ["mousedown", "touchstart", "dblclick"]) { // what draws does not move the view as well
      stage.addEventListener(kind, (event) => this.draws(event) && event.stopPropagation(), { capture: true });
    }
  }

  draws(event) {
    return this.tool !== "look" && !event.button && this.currentMap() !== null;
  }

  begin(event) {
    const spot = this.draws(event) && this.viewer.voxelAt(event.clientX, event.clientY);
    if (!spot) return;
    this.stage.setPointerCapture(event.pointerId);
    this.map = this.currentMap();
    this.map.begin();
    this.last = spot;
    this.stamp(spot.voxel);
    this.viewer.refreshLabel();
  }

  move(event) {
    const spot = this.viewer.voxelAt(event.clientX, event.clientY);
    this.showRing(event, spot);
    if (!this.last || !spot || spot.tile !== this.last.tile) return;
    const from = this.last.voxel, to = spot.voxel;
    to[spot.axis] = from[spot.axis];
    const steps = Math.max(...from.map((start, k) => Math.abs(to[k] - start)));
    for (let step = 1; step <= steps; step += 1) this.stamp(from.map((start, k) => Math.round(start + ((to[k] - start) * step) / steps)));
    this.last = spot;
    if (steps) this.viewer.refreshLabel();
  }

  finish() {
    if (!this.last) return;
    this.last = null;
    this.map.end();
    this.changed();
  }

  // A disc about a voxel: round in millimetres, and as wide as `size` of the smaller pixels.
  stamp(center) {
    const { dimsRAS, pixDimsRAS } = this.viewer.image;
    const [a, b] = [0, 1, 2].filter((axis) => axis !== this.last.axis);
    const unit = Math.min(pixDimsRAS[a + 1], pixDimsRAS[b + 1]);
    const [sa, sb] = [pixDimsRAS[a + 1] / unit, pixDimsRAS[b + 1] / unit];
    const radius = this.size / 2, value = this.tool === "eraser" ? 0 : this.value;
    for (let i = -Math.ceil(radius / sa); i <= radius / sa; i += 1) {
      for (let j = -Math.ceil(radius / sb); j <= radius / sb; j += 1) {
        const voxel = [...center];
        voxel[a] += i;
        voxel[b] += j;
        const inside = voxel.every((place, axis) => place >= 0 && place < dimsRAS[axis + 1]);
        if (inside && (i * sa) ** 2 + (j * sb) ** 2 <= radius ** 2) {
          this.map.paint(voxel[0] + dimsRAS[1] * (voxel[1] + dimsRAS[2] * voxel[2]), value);
        }
      }
    }
  }

  showRing(event, spot) {
    this.ring.hidden = !spot || !this.draws({ button: 0 });
    if (this.ring.hidden) return;
    const steps = this.viewer.image.pixDimsRAS;
    const unit = Math.min(...[0, 1, 2].filter((axis) => axis !== spot.axis).map((axis) => steps[axis + 1]));
    const box = this.stage.getBoundingClientRect();
    const diameter = Math.max(4, this.size * unit * spot.pixels);
    Object.assign(this.ring.style, {
      width: `${diameter}px`, height: `${diameter}px`, left: `${event.clientX - box.left}px`, top: `${event.clientY - box.top}px`,
    });
  }
}
