// SPDX-License-Identifier: Apache-2.0
// The image with its overlays, by NiiVue.
import { NVImage, Niivue, SLICE_TYPE } from "@niivue/niivue";

const VIEWS = {
  axial: [SLICE_TYPE.AXIAL, 2], coronal: [SLICE_TYPE.CORONAL, 1], sagittal: [SLICE_TYPE.SAGITTAL, 0],
  multi: [SLICE_TYPE.MULTIPLANAR, 2],
};
const HEAT = { // nothing where a kernel is silent, then red to yellow: seen on dark and on bright tissue
  R: [215, 215, 255, 255], G: [25, 25, 140, 245], B: [80, 80, 0, 130], A: [0, 0, 150, 235], I: [0, 20, 128, 255],
};

export class Viewer {
  constructor(canvas, onMove) {
    this.nv = new Niivue({
      backColor: [0, 0, 0, 1], crosshairColor: [1, 1, 1, 0.7], crosshairWidth: 0.6, crosshairWidthUnit: "mm",
      crosshairGap: 5, isRadiologicalConvention: true,
      dragAndDropEnabled: false, isColorbar: false, loadingText: "", show3Dcrosshair: false, logLevel: "error",
      multiplanarForceRender: false, multiplanarShowRender: 0, isOrientCube: false, fontMinPx: 11,
    });
    this.onMove = onMove;
    this.axis = 2;
    this.view = "axial";
    this.nv.onLocationChange = (place) => { this.place = place; this.onMove(place); };
    this.ready = this.nv.attachToCanvas(canvas).then(() => this.nv.addColormap("vmfseg-heat", HEAT));
    this.mask = null;
    this.heat = null;
  }

  async show(file) {
    await this.ready;
    for (const volume of [...this.nv.volumes].reverse()) this.nv.removeVolume(volume);
    this.mask = this.heat = null;
    const image = await NVImage.loadFromFile({ file, name: file.name, colormap: "gray" });
    this.nv.addVolume(image);
    this.nv.scene.crosshairPos = [0.5, 0.5, 0.5];
    this.setView(this.view);
  }

  // The plane in which the scan was taken: across the axis with the longest voxels.
  get acquired() {
    const steps = this.nv.volumes[0].pixDimsRAS.slice(1, 4);
    const longest = steps.indexOf(Math.max(...steps));
    return steps[longest] > 1.2 * Math.min(...steps) ? ["sagittal", "coronal", "axial"][longest] : "axial";
  }

  async showMask(file, classes, opacity) {
    const volume = await NVImage.loadFromFile({ file, name: file.name, opacity });
    const channel = (k) => classes.map((entry) => (entry.color ? parseInt(entry.color.slice(1 + 2 * k, 3 + 2 * k), 16) : 0));
    volume.setColormapLabel({
      R: channel(0), G: channel(1), B: channel(2), A: classes.map((entry) => (entry.value ? 255 : 0)),
      I: classes.map((entry) => entry.value), labels: classes.map((entry) => entry.name),
    });
    this.drop("mask");
    this.mask = volume;
    this.nv.addVolume(volume);
  }

  async showHeat(file, opacity) {
    const volume = await NVImage.loadFromFile({
      file, name: file.name, opacity, colormap: "vmfseg-heat", cal_min: 0, cal_max: 255, trustCalMinMax: false,
    });
    volume.cal_min = 0;
    volume.cal_max = 255;
    this.drop("heat");
    this.heat = volume;
    this.nv.addVolume(volume);
  }

  drop(what) {
    if (this[what]) this.nv.removeVolume(this[what]);
    this[what] = null;
  }

  setOpacity(what, value) {
    const index = this.nv.volumes.indexOf(this[what]);
    if (index > 0) this.nv.setOpacity(index, value);
  }

  setView(name) {
    const [type, axis] = VIEWS[name];
    this.view = name;
    this.axis = axis;
    this.nv.setSliceType(type);
    this.nv.updateGLVolume();
    this.nv.createOnLocationChange();
  }

  get slices() {
    return this.nv.volumes.length ? this.nv.volumes[0].dimsRAS[this.axis + 1] : 0;
  }

  get slice() {
    return Math.min(this.slices - 1, Math.floor(this.nv.scene.crosshairPos[this.axis] * this.slices));
  }

  set slice(number) {
    const place = [...this.nv.scene.crosshairPos];
    place[this.axis] = (number + 0.5) / this.slices;
    this.nv.scene.crosshairPos = place;
    this.nv.createOnLocationChange();
    this.nv.drawScene();
  }
}
