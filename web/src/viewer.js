// SPDX-License-Identifier: Apache-2.0
// The image with its label map and kernel map, by NiiVue.
import { DRAG_MODE, NVImage, Niivue, SLICE_TYPE } from "@niivue/niivue";

const PLANES = [ // NiiVue's view of a plane, across the axis of the same index
  ["sagittal", "Sagittal", SLICE_TYPE.SAGITTAL], ["coronal", "Coronal", SLICE_TYPE.CORONAL], ["axial", "Axial", SLICE_TYPE.AXIAL],
];
const THICK = 1.8; // steps between slices beyond this many pixels make a stack, of which other planes show little
const HEAT = { // nothing where a kernel is silent, then red to yellow: seen on dark and on bright tissue
  R: [215, 215, 255, 255], G: [25, 25, 140, 245], B: [80, 80, 0, 130], A: [0, 0, 150, 235], I: [0, 20, 128, 255],
};

export class Viewer {
  constructor(canvas, onMove) {
    this.canvas = canvas;
    this.nv = new Niivue({
      backColor: [0, 0, 0, 1], crosshairColor: [1, 1, 1, 0.7], crosshairWidth: 0, crosshairWidthUnit: "mm",
      crosshairGap: 5, isRadiologicalConvention: true, dragMode: DRAG_MODE.windowing,
      mouseEventConfig: {
        leftButton: { primary: DRAG_MODE.crosshair, withShift: DRAG_MODE.pan }, rightButton: DRAG_MODE.windowing, centerButton: DRAG_MODE.pan,
      },
      dragAndDropEnabled: false, isColorbar: false, loadingText: "", show3Dcrosshair: false, logLevel: "error",
      multiplanarForceRender: false, multiplanarShowRender: 0, isOrientCube: false, fontMinPx: 11, maxDrawUndoBitmaps: 1,
    });
    this.axis = 2;
    this.nv.onLocationChange = (place) => { this.place = place; onMove(); };
    this.ready = this.nv.attachToCanvas(canvas).then(() => this.nv.addColormap("vmfseg-heat", HEAT));
    this.heat = null;
  }

  get image() {
    return this.nv.volumes[0] ?? null;
  }

  // Show an image, unless something else is wanted by the time that it is read.
  async show(file, isWanted) {
    await this.ready;
    const image = await NVImage.loadFromFile({ file, name: file.name, colormap: "gray" });
    if (!isWanted()) return;
    this.clear();
    this.nv.addVolume(image);
    this.nv.scene.crosshairPos = [0.5, 0.5, 0.5];
    this.zoom = 1;
    this.setView(this.views[0][0]);
  }

  clear() {
    this.nv.closeDrawing();
    for (const volume of [...this.nv.volumes].reverse()) this.nv.removeVolume(volume);
    this.heat = this.place = this.label = null;
    this.nv.drawScene();
  }

  // The views that make sense: "Slices" in the plane of a stack of thick slices, all three planes otherwise.
  get views() {
    const steps = this.image.pixDimsRAS.slice(1, 4);
    const longest = steps.indexOf(Math.max(...steps));
    const [, second] = [...steps].sort((a, b) => b - a);
    if (steps[longest] < THICK * second) return [...[...PLANES].reverse(), ["multi", "All planes"]];
    return [[PLANES[longest][0], "Slices"], ["multi", "All planes"]];
  }

  setView(name) {
    const axis = PLANES.findIndex((plane) => plane[0] === name);
    this.view = name;
    this.axis = axis < 0 ? this.mainAxis : axis;
    this.nv.setSliceType(axis < 0 ? SLICE_TYPE.MULTIPLANAR : PLANES[axis][2]);
    this.nv.updateGLVolume();
    this.nv.createOnLocationChange();
  }

  get mainAxis() {
    return PLANES.findIndex((plane) => plane[0] === this.views[0][0]);
  }

  get slices() {
    return this.image ? this.image.dimsRAS[this.axis + 1] : 0;
  }

  get slice() {
    return Math.min(this.slices - 1, Math.floor(this.nv.scene.crosshairPos[this.axis] * this.slices));
  }

  set slice(number) {
    if (!this.image) return;
    const place = [...this.nv.scene.crosshairPos];
    place[this.axis] = (Math.min(Math.max(number, 0), this.slices - 1) + 0.5) / this.slices;
    this.nv.scene.crosshairPos = place;
    this.nv.createOnLocationChange();
    this.nv.drawScene();
  }

  get frames() {
    return this.image?.nFrame4D ?? 1;
  }

  set frame(number) {
    this.nv.setFrame4D(this.image.id, number);
  }

  // Darkest and brightest value that are told apart.
  get range() {
    return [this.image.cal_min, this.image.cal_max];
  }

  set range([low, high]) {
    Object.assign(this.image, { cal_min: low, cal_max: Math.max(high, low + 1e-6) });
    this.nv.updateGLVolume();
  }

  get zoom() {
    return this.nv.scene.pan2Dxyzmm[3];
  }

  // About the place that was clicked last, at first the middle of the image.
  set zoom(value) {
    const [x, y, z, old] = this.nv.scene.pan2Dxyzmm;
    const mm = this.nv.frac2mm(this.nv.scene.crosshairPos);
    const moved = [x, y, z].map((pan, axis) => pan + (old - value) * mm[axis]);
    this.nv.setPan2Dxyzmm(value > 1 ? [...moved, value] : [0, 0, 0, 1]);
  }

  set crosshair(shown) {
    this.nv.setCrosshairWidth(shown ? 0.6 : 0);
  }

  // Show a label map, or none.
  showLabel(map, classes) {
    if (map && classes !== this.classes) {
      const channel = (k) => classes.map((entry) => (entry.color ? parseInt(entry.color.slice(1 + 2 * k, 3 + 2 * k), 16) : 0));
      this.nv.setDrawColormap({
        R: channel(0), G: channel(1), B: channel(2), A: classes.map((entry) => (entry.value ? 255 : 0)),
        I: classes.map((entry) => entry.value), labels: classes.map((entry) => entry.name),
      });
      this.classes = classes;
    }
    if (map === this.label) return;
    if (!map) {
      this.nv.closeDrawing();
    } else {
      if (!this.nv.drawBitmap) this.nv.createEmptyDrawing();
      this.nv.drawBitmap = map.values;
      this.nv.refreshDrawing(false);
    }
    this.label = map;
    this.nv.drawScene();
  }

  refreshLabel() {
    this.nv.refreshDrawing(true);
  }

  // "fill", "outline" or "none"; NiiVue needs an opacity above zero to look for outlines.
  setLabelStyle(style, opacity) {
    this.nv.drawRimOpacity = style === "none" ? -1 : 1;
    this.nv.setDrawOpacity(style === "none" ? 0 : style === "fill" ? opacity : 0.001);
  }

  async showHeat(file, isWanted) {
    const volume = await NVImage.loadFromFile({ file, name: file.name, opacity: 0.8, colormap: "vmfseg-heat", trustCalMinMax: false });
    if (!isWanted()) return;
    Object.assign(volume, { cal_min: 0, cal_max: 255 });
    this.dropHeat();
    this.heat = volume;
    this.nv.addVolume(volume);
  }

  dropHeat() {
    if (this.heat) this.nv.removeVolume(this.heat);
    this.heat = null;
  }

  // The voxel at a place of the window, the axis across the plane there, and how many pixels a millimetre has; or null.
  voxelAt(clientX, clientY) {
    const box = this.canvas.getBoundingClientRect();
    const scale = this.canvas.width / box.width;
    const [x, y] = [(clientX - box.left) * scale, (clientY - box.top) * scale];
    const tile = this.image ? this.nv.tileIndex(x, y) : -1;
    const frac = tile < 0 ? [-1] : this.nv.canvasPos2frac([x, y]);
    if (frac[0] < 0 || this.nv.screenSlices[tile].axCorSag > SLICE_TYPE.SAGITTAL) return null;
    const beside = [4, -4].map((step) => this.nv.canvasPos2frac([x + step, y])).find((place) => place[0] >= 0) ?? frac;
    const { dimsRAS, pixDimsRAS } = this.image;
    const mm = Math.hypot(...[0, 1, 2].map((axis) => (beside[axis] - frac[axis]) * dimsRAS[axis + 1] * pixDimsRAS[axis + 1]));
    return {
      tile, axis: 2 - this.nv.screenSlices[tile].axCorSag, voxel: Array.from(this.nv.frac2vox(frac)), pixels: 4 / scale / mm,
    };
  }
}
